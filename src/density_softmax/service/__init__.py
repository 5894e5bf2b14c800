"""Exported models behind HTTP, and what watches them; nothing here imports torch."""
