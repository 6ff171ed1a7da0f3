"""Images by index: sources, decoding, labels, subsets, grids and image files."""
