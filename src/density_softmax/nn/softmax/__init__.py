"""From logits to probabilities: heads, temperatures, scales and averages."""
