"""Layers and surgery: variants of a network without writing it again."""
