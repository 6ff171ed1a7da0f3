"""Networks, objectives, metrics and data of each field: `gan`, `rl`, `vision`."""
