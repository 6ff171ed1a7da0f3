"""Self-supervision: features learned from two views of each image, without labels.

    python -m experiments.self_supervision --gin_file=self_supervision_digits.gin

The loss is a part: SimCLR (arXiv:2002.05709), BYOL (2006.07733), Barlow Twins (2103.03230), VICReg
(2105.04906) or DINO (2104.14294); see `models.vision.self_supervision.losses`. All share one
algorithm: a network and a projector look at both views. BYOL has a predictor behind them, and BYOL
and DINO learn from a teacher, whose weights are moving averages of the network's.
"""

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import replicator
from models.vision import sources  # noqa: F401  (for gin)
from models.vision.augmentation.random_view import TwoViews
from models.vision.classification.lars import LARS  # noqa: F401  (for gin)
from models.vision.classification.resnet import ResNet
from models.vision.images.image_source import ImageSource, hold_out, to_unit_range
from models.vision.self_supervision import losses
from models.vision.self_supervision.evaluation import FeatureEvaluator
from models.vision.self_supervision.projector import projector
from replicator import app

import gin
import keras
import tensorflow as tf


@gin.configurable(denylist=["channels"])
class SelfSupervision(tf.Module):
  """One training step: one update of a network, its projector and perhaps its predictor.

  Args:
    channels: 1 for gray, 3 for color images.
    loss: makes one of `models.vision.self_supervision.losses`.
    optimizer: makes a Keras optimizer. The averages that it keeps (`wrap_optimizer.ema_decay`) are
      the teacher.
    network: makes the network; it is made and called as `ResNet` is, whose last layer is not used.
    hidden: the units of the hidden layers of the projector, and of the predictor.
    outputs: the units of the last layer of each.

  Raises:
    UsageError: the loss needs a teacher, and the optimizer keeps no averages.
  """

  may_collapse: ClassVar = {"collapse of the projections": ("spread", "image_spread")}

  def __init__(self, channels: int,
               loss: Callable[[], losses.SelfSupervisedLoss] = gin.REQUIRED,
               optimizer: Callable[[], keras.optimizers.Optimizer] = gin.REQUIRED,
               network: Callable[[int, int], Any] = ResNet, hidden: Sequence[int] = (2048,),
               outputs: int = 128):
    super().__init__()
    self.loss = loss()
    self.network = network(1, channels)
    self.network.linear.trainable = False
    self.projector = projector(self.network.num_features, hidden, outputs, self.loss.prototypes)
    self.predictor = projector(outputs, hidden, outputs) if self.loss.predicts else None
    parts = [part for part in (self.network, self.projector, self.predictor) if part is not None]
    self.optimizer = replicator.wrap_optimizer(
        optimizer(), [v for part in parts for v in part.trainable_variables])
    if self.loss.has_teacher and not self.optimizer.averages:
      raise replicator.UsageError(
          f"wrap_optimizer.ema_decay = None: the teacher of {type(self.loss).__name__} is the "
          "network with averaged weights; write 0.99, or a schedule that ends at 1")

  def __call__(self, batch: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
    """Takes one step: `{"image", "other": uint8 [n, h, w, c]}` -> scalars, float [].

    These are `loss`; and `spread`, the variance of the normalized projections of the first views,
    which is 1 if they point anywhere, and 0 if all are the same; `image_spread` is that of pixels.
    """
    first, second = (to_unit_range(batch[name], keras.config.floatx())
                     for name in ("image", "other"))
    loss, *means = self.optimizer.minimize(self._loss, first, second)
    spread, image_spread = (1 - tf.reduce_sum(tf.square(mean))
                            for mean in replicator.all_mean(means))
    return {"loss": loss, "spread": spread, "image_spread": image_spread}

  def project(self, images: tf.Tensor) -> tf.Tensor:
    """Projections of a batch in training: `[n, h, w, c] -> [n, d]`."""
    return self.projector(self.network.features(images, training=True), training=True)

  def _loss(self, first: tf.Tensor, second: tf.Tensor) -> list[tf.Tensor]:
    """The loss [], and the means of normalized projections [d] and images [h w c]."""
    # The teacher's batch norms do not move their statistics, which are the network's.
    with self.optimizer.averaged_weights():
      targets = (self.project(first), self.project(second)) if self.loss.has_teacher else None
    projections = views = self.project(first), self.project(second)
    if self.predictor is not None:
      views = self.predictor(views[0], training=True), self.predictor(views[1], training=True)
    return [self.loss(views, targets or views),
            *(tf.reduce_mean(tf.math.l2_normalize(tf.reshape(x, [x.shape[0], -1]), 1), 0)
              for x in (projections[0], first))]

  @replicator.any_batch_size
  def features(self, images: tf.Tensor) -> tf.Tensor:
    """Features that the network has learned: uint8 `[n, h, w, c] -> [n, num_features]`."""
    return self.network.features(to_unit_range(images, keras.config.floatx()))


@gin.configurable
def self_supervision(workdir: str, data: Callable[[], ImageSource] = gin.REQUIRED,
                     held_out: float = 0.2) -> None:
  """Learns features of `data`, or resumes the run in `workdir`.

  Args:
    workdir: the folder of the run.
    data: makes the source of the images, a `TwoViews`.
    held_out: the share of images that nothing is trained on, which test the features.

  Raises:
    UsageError: the data has one view of each image.
  """
  source = data()
  if not isinstance(source, TwoViews):
    raise replicator.UsageError(f"self_supervision.data: {type(source).__name__} has one view of "
                                "each image; write @TwoViews, and name it in TwoViews.data")
  train_on, others = hold_out(source, held_out)
  replicator.train(lambda: SelfSupervision(train_on.image_shape[-1]), train_on,
                   FeatureEvaluator(train_on, others), workdir=workdir)


if __name__ == "__main__":
  app.run(self_supervision)
