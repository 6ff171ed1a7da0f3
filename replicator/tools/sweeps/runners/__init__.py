"""Where the trials of a sweep run: on this machine, in a Slurm array, or on a Ray cluster."""
