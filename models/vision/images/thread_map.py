"""Applies functions of one item to many items, in a pool of threads."""

import functools
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import numpy as np

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")

_AT_ONCE = 256  # Maximum number of pending results.
_THREADS = os.cpu_count() or 1


Shown = Callable[[int, int], None]
"""Shows the progress; called with the number of finished items and of all items."""


def map_in_threads(function: Callable[[_Item], _Result], items: Sequence[_Item],
                   shown: Shown | None = None) -> Iterator[_Result]:
  """Yields `function(item)` for each item, in order; some are computed ahead.

  It has a separate thread pool, so that `function` may use that of `in_threads`. Pillow, NumPy and
  disk reads release the GIL. After an error, no further items are started.
  """
  with ThreadPoolExecutor(_THREADS) as pool:
    for start in range(0, len(items), _AT_ONCE):
      if shown:
        shown(start, len(items))
      yield from pool.map(function, items[start:start + _AT_ONCE])


def in_threads(draw: Callable) -> Callable:
  """Vectorizes a function of one example, to also take arrays [n, ...] of n examples.

  `draw` returns an array or a tuple of arrays, which are stacked. All calls share one thread pool.
  If `draw` raises errors, the first example's is raised.
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
