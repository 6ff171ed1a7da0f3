"""A run on the disk: what writes the files of its workdir, reads them, and draws its pages."""
