"""Runnable experiments, one file each: `python -m experiments.NAME --gin_file=...`."""
