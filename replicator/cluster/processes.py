"""The processes that a cluster manager starts together."""

from typing import Any, NamedTuple


class Processes(NamedTuple):
  """The processes of one run, and the rank of this process.

  Attributes:
    addresses: "host:port" of each process, by its rank.
    rank: the rank of this process.
    source: what describes them, such as "Slurm's step 7.0".
  """

  addresses: list[str]
  rank: int
  source: str

  def tf_config(self, servers: int | None) -> dict[str, Any]:
    """TF_CONFIG of this process.

    All are workers if `servers` is None. Else the first one is the chief, the next `servers` ones
    are parameter servers, and the others are workers.
    """
    if servers is None:
      kinds = ["worker"] * len(self.addresses)
    else:
      kinds = ["chief", *["ps"] * servers, *["worker"] * (len(self.addresses) - 1 - servers)]
    cluster: dict[str, list[str]] = {}
    for kind, address in zip(kinds, self.addresses, strict=False):
      cluster.setdefault(kind, []).append(address)
    kind = kinds[self.rank]
    return {"cluster": cluster, "task": {"type": kind, "index": kinds[:self.rank].count(kind)}}
