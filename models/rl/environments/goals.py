"""Goals in dictionaries of observations, as in Gymnasium-Robotics."""

from gymnasium import spaces

_NAMES = ("achieved_goal", "desired_goal")


def goals_in(space: spaces.Space) -> tuple[int, int, int] | None:
  """Locates goals in a flat observation: starts of achieved and desired goal, and their length.

  Returns None unless the space is a dictionary with both, of the same length.
  """
  first, sizes, place = {}, {}, 0
  for name, part in space.items() if isinstance(space, spaces.Dict) else ():
    first[name], sizes[name] = place, spaces.flatdim(part)
    place += sizes[name]
  achieved, desired = _NAMES
  if not first.keys() >= set(_NAMES) or sizes[achieved] != sizes[desired]:
    return None
  return first[achieved], first[desired], sizes[desired]
