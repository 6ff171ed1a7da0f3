"""The workdir of a run: writes its files, reads them, and renders pages about them."""
