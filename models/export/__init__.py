"""Trained networks as files that load without this project: SavedModel and ONNX."""
