"""Networks, losses, metrics and data of each field: `gan`, `vision`."""
