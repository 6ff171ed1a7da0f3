"""Self-supervision: features learned from two views of each image, without labels.

    python -m experiments.self_supervision --gin_file=self_supervision_digits.gin

The gin file chooses the loss: SimCLR (arXiv:2002.05709), BYOL (2006.07733), Barlow Twins
(2103.03230), VICReg (2105.04906) or DINO (2104.14294); see `models.vision.self_supervision.losses`.
All share one algorithm: a network and a projector process both views. BYOL adds a predictor. BYOL
and DINO learn from a teacher, whose weights are moving averages of the network's.
"""

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import replicator
from models.vision import sources  # noqa: F401  (for gin)
from models.vision.augmentation.random_view import TwoViews
from models.vision.classification.lars import LARS  # noqa: F401  (for gin)
from models.vision.classification.resnet import ResNet
from models.vision.images.image_source import ImageSource, to_unit_range, train_validation_split
from models.vision.self_supervision import losses
from models.vision.self_supervision.evaluation import FeatureEvaluator
from models.vision.self_supervision.projector import projector
from replicator import app

import gin
import keras
import tensorflow as tf


@gin.configurable(denylist=["channels"])
class SelfSupervision(tf.Module):
  """One training step: one update of a network, its projector and any predictor.

  Args:
    channels: 1 for gray, 3 for color images.
    loss: makes one of `models.vision.self_supervision.losses`.
    optimizer: makes a Keras optimizer. Its averaged weights (`wrap_optimizer.ema_decay`) are the
      teacher's.
    network: makes the network; constructed and called like `ResNet`. Its last layer is not used.
    hidden_sizes: units of the hidden layers of the projector, and of the predictor.
    projection_dim: units of the last layer of both.

  Raises:
    UsageError: the loss needs a teacher, but the optimizer keeps no averages.
  """

  may_collapse: ClassVar = {"collapse of the projections": (
      "projection_variance", "image_variance")}

  def __init__(self, channels: int,
               loss: Callable[[], losses.SelfSupervisedLoss] = gin.REQUIRED,
               optimizer: Callable[[], keras.optimizers.Optimizer] = gin.REQUIRED,
               network: Callable[[int, int], Any] = ResNet, hidden_sizes: Sequence[int] = (2048,),
               projection_dim: int = 128):
    super().__init__()
    self.loss = loss()
    self.network = network(1, channels)
    self.network.linear.trainable = False
    self.projector = projector(self.network.num_features, hidden_sizes, projection_dim,
                               self.loss.prototypes)
    self.predictor = (projector(projection_dim, hidden_sizes, projection_dim)
                      if self.loss.predicts else None)
    parts = [part for part in (self.network, self.projector, self.predictor) if part is not None]
    self.optimizer = replicator.wrap_optimizer(
        optimizer(), [v for part in parts for v in part.trainable_variables])
    if self.loss.has_teacher and not self.optimizer.averages:
      raise replicator.UsageError(
          f"wrap_optimizer.ema_decay = None: the teacher of {type(self.loss).__name__} is the "
          "network with averaged weights; write 0.99, or a schedule that ends at 1")

  def __call__(self, batch: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
    """Takes one step: `{"image", "other": uint8 [n, h, w, c]}` -> scalars, float [].

    The scalars are `loss/network`; `projection_variance`, the variance of the first views'
    normalized projections, from 0 if all are the same to 1 if their mean is 0; and
    `image_variance`, the same for their pixels.
    """
    first, second = (to_unit_range(batch[name], keras.config.floatx())
                     for name in ("image", "other"))
    loss, *means = self.optimizer.minimize(self._loss, first, second)
    of_projections, of_images = (1 - tf.reduce_sum(tf.square(mean))
                                 for mean in replicator.all_mean(means))
    return {"loss/network": loss, "projection_variance": of_projections,
            "image_variance": of_images}

  def project(self, images: tf.Tensor) -> tf.Tensor:
    """Returns the projections of a batch in training mode: `[n, h, w, c] -> [n, d]`."""
    return self.projector(self.network.features(images, training=True), training=True)

  def _loss(self, first: tf.Tensor, second: tf.Tensor) -> list[tf.Tensor]:
    """Returns the loss [], and the means of normalized projections [d] and images [h w c]."""
    # The teacher's batch norms do not update their statistics, which belong to the network.
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
    """Returns the network's features: uint8 `[n, h, w, c] -> [n, num_features]`."""
    return self.network.features(to_unit_range(images, keras.config.floatx()))


@gin.configurable
def train_self_supervision(workdir: str, data: Callable[[], ImageSource] = gin.REQUIRED,
                           validation_split: float = 0.2) -> None:
  """Learns features of `data`, or resumes the run in `workdir`.

  Args:
    workdir: the folder of the run.
    data: makes the source of the images, a `TwoViews`.
    validation_split: fraction of the images held out to test the features.

  Raises:
    UsageError: the data has only one view of each image.
  """
  source = data()
  if not isinstance(source, TwoViews):
    raise replicator.UsageError(f"train_self_supervision.data: {type(source).__name__} has one "
                                "view of each image; write @TwoViews, and name it in TwoViews.data")
  train_on, others = train_validation_split(source, validation_split)
  replicator.train(lambda: SelfSupervision(train_on.image_shape[-1]), train_on,
                   FeatureEvaluator(train_on, others), workdir=workdir)


if __name__ == "__main__":
  app.run(train_self_supervision)
