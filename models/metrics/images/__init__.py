"""Sets of images given on a command line."""
