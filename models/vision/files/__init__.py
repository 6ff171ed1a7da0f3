"""Sources of the user's own images: folders, archives, arrays and library data sets."""
