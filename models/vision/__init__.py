"""Images: data sets, a small classifier, grids of images."""
