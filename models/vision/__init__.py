"""Images: data sets, augmentation, classifiers and self-supervision."""
