"""TFRecord files with random access."""
