"""Inputs: example sources, each worker's rows of the global batches, and single passes."""
