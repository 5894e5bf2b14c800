"""Classifiers that know what they do not know, at the cost of one forward pass."""
