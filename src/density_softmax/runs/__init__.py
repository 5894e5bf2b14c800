"""Runs on disk: what a recipe and a seed became."""
