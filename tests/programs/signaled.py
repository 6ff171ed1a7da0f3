"""Multiplies matrices for some seconds while signals come, a thousand a second.

Prints how many came, and whether every product was the same.
"""

import signal
import sys
import time

import replicator  # noqa: F401  (before TensorFlow: it gives signals a stack of their own)

import numpy as np
import tensorflow as tf


@tf.function(jit_compile=True, autograph=False)
def products(xs: list[tf.Tensor], ys: list[tf.Tensor]) -> list[tf.Tensor]:
  """The gradients of the kernels of several layers: `[256, i], [256, 256] -> [i, 256]` each."""
  return [tf.matmul(x, y, transpose_a=True) for x, y in zip(xs, ys, strict=True)]


def main(seconds: float) -> None:
  """Multiplies for so many seconds."""
  came = 0

  def count(number: int, frame: object) -> None:
    nonlocal came
    came += 1
  xs = [tf.random.stateless_normal([256, size], [0, size]) for size in (23, 17, 256, 262)]
  ys = [tf.random.stateless_normal([256, 256], [1, i]) for i in range(len(xs))]
  expected = [x.numpy() for x in products(xs, ys)]
  signal.signal(signal.SIGALRM, count)
  signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
  same, end = True, time.monotonic() + seconds
  while time.monotonic() < end:
    found = products(xs, ys)
    same &= all(np.array_equal(a, b) for a, b in zip(expected, found, strict=True))
  signal.setitimer(signal.ITIMER_REAL, 0.0)
  print(came > 100, same)


if __name__ == "__main__":
  main(float(sys.argv[1]))
