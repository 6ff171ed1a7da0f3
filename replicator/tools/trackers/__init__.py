"""Services that show runs: each follows what a run writes to its workdir."""
