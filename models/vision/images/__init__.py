"""Images by index: sources, decoding, labels, parts, grids and files of images."""
