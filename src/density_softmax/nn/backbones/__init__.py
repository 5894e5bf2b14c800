"""Encoders that a recipe can name."""
