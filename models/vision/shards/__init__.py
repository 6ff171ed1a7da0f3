"""TFRecord files, read at any index."""
