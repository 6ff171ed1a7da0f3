"""The memory of a process."""

import resource


def resident_mib() -> float:
  """The highest resident size of this process so far, in MiB."""
  return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
