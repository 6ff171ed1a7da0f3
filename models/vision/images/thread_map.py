"""Functions of one item, called for many items by a pool of threads."""

import functools
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import numpy as np

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")

_AT_ONCE = 256  # Results that wait to be taken.
_THREADS = os.cpu_count() or 1


Shown = Callable[[int, int], None]
"""Shows the progress: is called with how many items are done, and how many there are."""


def map_in_threads(function: Callable[[_Item], _Result], items: Sequence[_Item],
                   shown: Shown | None = None) -> Iterator[_Result]:
  """Yields `function(item)` of each item, in order; some are computed ahead.

  The threads are a pool of its own, so that `function` may use that of `in_threads`. Pillow, NumPy
  and reading from a disk leave the GIL. If an item raises an error, no further ones are begun.
  """
  with ThreadPoolExecutor(_THREADS) as pool:
    for start in range(0, len(items), _AT_ONCE):
      if shown:
        shown(start, len(items))
      yield from pool.map(function, items[start:start + _AT_ONCE])


def in_threads(draw: Callable) -> Callable:
  """A function of one example that also takes those of n examples, arrays [n, ...], at once.

  `draw` makes an array or a tuple of some, which are stacked. The threads of one pool share the
  examples. If `draw` raises errors, the first example's is raised.
  """
  def of_one_or_many(*arguments: np.ndarray) -> Any:
    if np.ndim(arguments[0]) == 0:
      return draw(*arguments)
    drawn = list(_pool().map(draw, *arguments))
    return (tuple(map(np.stack, zip(*drawn, strict=True))) if isinstance(drawn[0], tuple)
            else np.stack(drawn))
  return of_one_or_many


@functools.cache
def _pool() -> ThreadPoolExecutor:
  return ThreadPoolExecutor(_THREADS)
