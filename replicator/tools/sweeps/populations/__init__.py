"""Population-based training: trials train in parallel, and poor ones copy good ones."""
