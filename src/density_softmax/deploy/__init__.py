"""Exports trained models to files that `serve` reads."""
