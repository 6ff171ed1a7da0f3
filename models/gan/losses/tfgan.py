"""The losses of TF-GAN 2.1.0 on current TensorFlow, with all the workarounds that they need.

`import tensorflow_gan` has failed since TensorFlow 2.16, which has no `tf.estimator`. The losses do
not need it, but the package's `__init__` imports everything. So this module loads just their file
from the package's folder, which is also faster: 2 ms instead of 0.8 s for the whole package. The
loaded module is a private copy: `sys.modules` and TensorFlow itself do not change.
"""

import functools
import importlib.util
import sys
import types
from pathlib import Path
from typing import Any

import tensorflow as tf


@functools.cache
def losses() -> types.ModuleType:
  """Returns `tensorflow_gan.losses.wargs`: losses as functions of scores.

  Unlike the originals they keep float64. TF-GAN rounds every score to float32, and float64 tests
  would see this error of 1e-7 as a bug. Half-precision scores give float32 losses.
  """
  module = _load()
  v1 = _View(tf.compat.v1, losses=_View(tf.compat.v1.losses, compute_weighted_loss=_mean_loss,
                                        sigmoid_cross_entropy=_sigmoid_cross_entropy))
  module.tf = _View(tf, compat=_View(tf.compat, v1=v1))
  module._to_float = exact
  return module


class _View:
  """A view of a module with some attributes replaced. The module itself does not change."""

  def __init__(self, module: Any, **replaced: Any) -> None:
    self.__dict__.update(replaced)
    self._module = module

  def __getattr__(self, name: str) -> Any:
    return getattr(self._module, name)


def exact(x: tf.Tensor) -> tf.Tensor:
  """Casts to the precision of losses: float64 stays, everything else becomes float32."""
  return x if x.dtype == tf.float64 else tf.cast(x, tf.float32)


def _mean_loss(losses: tf.Tensor, weights: Any = 1.0, *options: Any, **more: Any) -> tf.Tensor:
  """Computes `tf.compat.v1.losses.compute_weighted_loss` without rounding float64 to float32."""
  if losses.dtype != tf.float64:
    return tf.compat.v1.losses.compute_weighted_loss(losses, weights, *options, **more)
  return tf.reduce_mean(losses)


def _sigmoid_cross_entropy(labels: tf.Tensor, logits: tf.Tensor, weights: Any = 1.0,
                           label_smoothing: float = 0.0, *options: Any, **more: Any) -> tf.Tensor:
  """Computes `tf.compat.v1.losses.sigmoid_cross_entropy` with `_mean_loss`; float32 or float64."""
  logits = exact(logits)
  labels = tf.cast(labels, logits.dtype) * (1 - label_smoothing) + label_smoothing / 2
  losses = tf.nn.sigmoid_cross_entropy_with_logits(labels, logits)
  return _mean_loss(losses, weights, *options, **more)


def _load() -> Any:
  """Loads a private copy of the losses' file, without running the `__init__` of its packages."""
  found: Any = importlib.util.find_spec("tensorflow_gan")
  spec: Any = importlib.util.spec_from_file_location(
      "losses_impl", Path(found.origin).parent / "python" / "losses" / "losses_impl.py")
  module = importlib.util.module_from_spec(spec)
  # Its gradient penalty, which does not run on current TensorFlow, imports this name.
  package: Any = types.ModuleType("tensorflow_gan.python")
  package.contrib_utils = None
  stubs = {"tensorflow_gan": types.ModuleType("tensorflow_gan"), package.__name__: package}
  aside = {name: sys.modules[name] for name in stubs if name in sys.modules}
  sys.modules.update(stubs)
  try:
    spec.loader.exec_module(module)
  finally:
    for name in stubs:
      del sys.modules[name]
    sys.modules.update(aside)
  return module
