"""TF-GAN 2.1.0 on today's TensorFlow. Every workaround that it needs is in this module.

`import tensorflow_gan` fails since TensorFlow 2.16, which has no `tf.estimator`. The losses and the
metrics do not need it, but the package's `__init__` imports everything. So this module loads single
modules from the package's folder, with empty packages as their parents. That is fast, too: 2 ms for
the losses instead of 0.8 s for the whole package. The loaded modules are private copies:
`sys.modules` and TensorFlow itself do not change.
"""

import functools
import importlib
import importlib.util
import sys
import types
import warnings
from pathlib import Path
from typing import Any

import tensorflow as tf


@functools.cache
def losses() -> types.ModuleType:
  """`tensorflow_gan.losses.wargs`: losses as functions of scores.

  Unlike the originals they keep float64. TF-GAN rounds every score to float32, and a float64 proof
  would take this error of 1e-7 for a bug. Half-precision scores give float32 losses.
  """
  module: Any = _load("tensorflow_gan.python.losses.losses_impl")
  v1 = _View(tf.compat.v1, losses=_View(tf.compat.v1.losses, compute_weighted_loss=_mean_loss,
                                        sigmoid_cross_entropy=_sigmoid_cross_entropy,
                                        softmax_cross_entropy=_softmax_cross_entropy))
  module.tf = _View(tf, compat=_View(tf.compat, v1=v1))
  module._to_float = lambda x: x if x.dtype == tf.float64 else tf.cast(x, tf.float32)
  return module


@functools.cache
def classifier_metrics() -> types.ModuleType:
  """The metrics of `tensorflow_gan.eval` from a classifier's activations or logits.

  They use TensorFlow Probability for covariances only, which takes a second to import.
  """
  probability = types.ModuleType("tensorflow_probability")
  probability.stats = types.SimpleNamespace(covariance=_covariance)  # type: ignore[attr-defined]
  return _load("tensorflow_gan.python.eval.classifier_metrics", probability)


def _covariance(x: tf.Tensor) -> tf.Tensor:
  """`tfp.stats.covariance`, bit for bit: `[n, d] -> [d, d]`."""
  centered = tf.transpose(x - tf.reduce_mean(x, 0, keepdims=True))
  return tf.matmul(centered, centered, adjoint_b=True) / tf.cast(centered.shape[1], x.dtype)


class _View:
  """A view of a module with some attributes replaced. The module itself does not change."""

  def __init__(self, module: Any, **replaced: Any) -> None:
    self.__dict__.update(replaced)
    self._module = module

  def __getattr__(self, name: str) -> Any:
    return getattr(self._module, name)


def _mean_loss(losses: tf.Tensor, weights: Any = 1.0, scope: str | None = None,
               loss_collection: str | None = None,
               reduction: str = tf.compat.v1.losses.Reduction.SUM_BY_NONZERO_WEIGHTS) -> tf.Tensor:
  """`tf.compat.v1.losses.compute_weighted_loss`, but without rounding float64 to float32."""
  if losses.dtype != tf.float64:
    return tf.compat.v1.losses.compute_weighted_loss(
        losses, weights, scope, loss_collection, reduction)
  if reduction != tf.compat.v1.losses.Reduction.SUM_BY_NONZERO_WEIGHTS:
    raise NotImplementedError(f"A float64 loss with reduction={reduction!r}.")
  weights = tf.broadcast_to(tf.cast(weights, losses.dtype), tf.shape(losses))
  present = tf.math.count_nonzero(weights, dtype=losses.dtype)
  return tf.math.divide_no_nan(tf.reduce_sum(losses * weights), present)


def _sigmoid_cross_entropy(labels: tf.Tensor, logits: tf.Tensor, weights: Any = 1.0,
                           label_smoothing: float = 0.0, scope: str | None = None,
                           loss_collection: str | None = None,
                           reduction: str = tf.compat.v1.losses.Reduction.SUM_BY_NONZERO_WEIGHTS
                           ) -> tf.Tensor:
  """`tf.compat.v1.losses.sigmoid_cross_entropy` with `_mean_loss`; float32 or float64."""
  logits = logits if logits.dtype == tf.float64 else tf.cast(logits, tf.float32)
  labels = tf.cast(labels, logits.dtype) * (1 - label_smoothing) + label_smoothing / 2
  losses = tf.nn.sigmoid_cross_entropy_with_logits(labels, logits)
  return _mean_loss(losses, weights, scope, loss_collection, reduction)


def _softmax_cross_entropy(labels: tf.Tensor, logits: tf.Tensor, weights: Any = 1.0,
                           label_smoothing: float = 0.0, scope: str | None = None,
                           loss_collection: str | None = None,
                           reduction: str = tf.compat.v1.losses.Reduction.SUM_BY_NONZERO_WEIGHTS
                           ) -> tf.Tensor:
  """`tf.compat.v1.losses.softmax_cross_entropy` with `_mean_loss`; float32 or float64."""
  logits = logits if logits.dtype == tf.float64 else tf.cast(logits, tf.float32)
  labels = (tf.cast(labels, logits.dtype) * (1 - label_smoothing)
            + label_smoothing / logits.shape[-1])
  losses = tf.nn.softmax_cross_entropy_with_logits(labels, logits)
  return _mean_loss(losses, weights, scope, loss_collection, reduction)


def _load(name: str, *replaced: types.ModuleType) -> types.ModuleType:
  """Loads a private copy of the module without running the `__init__` of its packages.

  It imports the modules `replaced` in place of those of the same names.
  """
  names = ["tensorflow_gan", *(module.__name__ for module in replaced)]
  aside = _take_modules(names)
  try:
    sys.modules.update({module.__name__: module for module in replaced})
    spec = importlib.util.find_spec("tensorflow_gan")
    if spec is None or spec.origin is None:
      raise ImportError("tensorflow_gan is not installed: pip install tensorflow-gan==2.1.0.")
    parents = name.split(".")[:-1]
    for depth in range(1, len(parents) + 1):
      package = types.ModuleType(".".join(parents[:depth]))
      package.__path__ = [str(Path(spec.origin).parent.joinpath(*parents[1:depth]))]
      sys.modules[package.__name__] = package
    with warnings.catch_warnings():
      warnings.simplefilter("ignore")  # Deprecated distutils, pkg_resources and Keras 2 names.
      return importlib.import_module(name)
  finally:
    _take_modules(names)
    sys.modules.update(aside)


def _take_modules(packages: list[str]) -> dict[str, types.ModuleType]:
  """Removes all modules of some packages from `sys.modules`, and returns them by name."""
  names = [name for name in sys.modules if name.split(".")[0] in packages]
  return {name: sys.modules.pop(name) for name in names}
