"""From a score to a decision, with a guarantee: numpy alone, so that it serves without torch."""
