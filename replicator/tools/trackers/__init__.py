"""Services that show runs: each gets what a run logs as soon as it is logged."""
