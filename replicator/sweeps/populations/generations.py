"""Generations of a population: who copies whom, and with what bindings it goes on.

All of it follows from the sweep file and the metrics. A name that is added does not change the
values of others.
"""

import dataclasses
import math
import random
from collections.abc import Mapping, Sequence

from replicator.sweeps import search, space
from replicator.sweeps.results import rank
from replicator.sweeps.sweep_file import SweepFile

SHARE = 4  # The lowest quarter copies the top quarter.
_RESAMPLED = 0.25  # The probability that a value is drawn from its space.
_FACTORS = (0.8, 1.2)


@dataclasses.dataclass(frozen=True)
class Draw:
  """Drawn for a member and a generation: its bindings, and whose checkpoint it begins with."""

  bindings: space.Point
  parent: int = 0  # The number of a member, from 1 on; 0 if it goes on with its own.


Generation = Sequence[Draw]


def following(file: SweepFile, generations: Sequence[Generation], scores: Sequence[float]
              ) -> list[Draw]:
  """The generation after `generations`, whose last one has ended with `scores`, by member.

  The score of a member that failed is nan. Without a finite score there is none: the list is empty.
  """
  last, count = generations[-1], len(scores)
  order = sorted(range(count), key=lambda i: rank(scores[i], file.goal))  # The best first.
  share = max(1, count // SHARE)
  top = [i for i in order[:share] if not math.isnan(scores[i])]
  poor = {*order[-share:], *(i for i in order if math.isnan(scores[i]))}
  if not top:
    return []
  made = []
  for i, member in enumerate(last):
    draw = f"{file.search_seed}/{len(generations)}/{i + 1}"
    donor = top[int(random.Random(draw).random() * len(top))]
    made.append(Draw(_perturbed(file.space(), last[donor].bindings, draw), donor + 1)
                if i in poor else Draw(member.bindings))
  return made


def _perturbed(names: Mapping[str, space.Distribution], bindings: space.Point, draw: str
               ) -> space.Point:
  """The bindings with each value changed; a name that is added does not change those of others."""
  changed = {}
  for name, value in bindings.items():
    uniform = random.Random(f"{draw}/{name}").random
    if uniform() < _RESAMPLED:
      changed.update(next(search.draws({name: names[name]}, draw)))
    else:
      changed[name] = names[name].scaled(value, _FACTORS[uniform() < 0.5])
  return changed
