"""Rendered frames of environments, as RGB images."""

from typing import Any

import numpy as np


def in_colors(rendered: Any) -> np.ndarray:
  """Converts the result of `render()` to a frame `[h, w, 3]` of the same dtype, without alpha.

  Raises:
    ValueError: it is not `[h, w]` or `[h, w, c]` with 1, 3 or 4 channels.
  """
  frame = np.asarray(rendered)
  if frame.ndim == 2 and frame.size:
    frame = frame[..., np.newaxis]
  if frame.ndim != 3 or frame.shape[2] not in (1, 3, 4) or not frame.size:
    what = (f"an array {list(frame.shape)}" if isinstance(rendered, np.ndarray) else
            "nothing" if rendered is None else f"a {type(rendered).__name__}")
    raise ValueError(f"its render() returned {what}; it must return an image [h, w, 3]")
  return np.repeat(frame, 3, 2) if frame.shape[2] == 1 else frame[..., :3]
