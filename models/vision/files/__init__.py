"""Sources that read images which a user brings: folders, archives, arrays and data sets."""
