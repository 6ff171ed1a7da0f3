"""Networks, objectives, metrics and data of each field: `gan`, `rl`, `vision`."""

import replicator.moved  # noqa: F401  (says where modules went)
