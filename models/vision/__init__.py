"""Images: data sets, a small classifier, grids of images."""

from replicator.console import quiet

quiet.import_tensorflow()
