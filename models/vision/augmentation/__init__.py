"""Random views, mixtures and shifts of images."""
