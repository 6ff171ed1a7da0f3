"""Sets of images that a command line names."""
