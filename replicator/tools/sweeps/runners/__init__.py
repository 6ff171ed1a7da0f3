"""Runners of a sweep's trials: on this machine, in a Slurm array, or on a Ray cluster."""
