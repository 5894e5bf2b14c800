"""Parts with weights. Each module knows nothing of data, training loops or devices."""
