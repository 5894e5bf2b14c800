"""Predicts with exported models, with numpy and onnxruntime; nothing here imports torch."""
