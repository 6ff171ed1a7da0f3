"""Examples: what a source is, each worker's rows of the global batches, and one pass over them."""
