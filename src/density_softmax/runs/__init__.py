"""Runs on disk: what a recipe and a seed became."""

from density_softmax.runs.run import Run, find_runs

__all__ = ["Run", "find_runs"]
