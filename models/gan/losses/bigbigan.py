"""The objective of BigBiGAN (Donahue and Simonyan 2019, arXiv:1907.02544, equations 3 and 4).

Each is a sum over the joint term of (image, code) pairs and two unary terms, of images and of
codes. The authors' public notebook takes the mean of the three, which is a third of this.
"""

import tensorflow as tf

from models.gan.losses import adversarial
from models.gan.networks.bigbigan import PairScores


def discriminator_loss(real: PairScores, generated: PairScores) -> tf.Tensor:
  """The hinge losses of the three scores, summed: `[n], [n] -> []`.

  Args:
    real: the scores of images and the codes that the encoder drew for them.
    generated: the scores of generated images and the codes that they were made from.
  """
  hinge = adversarial.hinge().discriminator
  return tf.add_n([hinge(*scores) for scores in zip(real, generated, strict=True)])


def encoder_loss(real: PairScores) -> tf.Tensor:
  """What makes pairs of real images look generated: `[n] -> []`.

  The score of the image alone gives the encoder no gradient.
  """
  return tf.reduce_mean(tf.add_n(list(real)))


def generator_loss(generated: PairScores) -> tf.Tensor:
  """What makes generated pairs look real: `[n] -> []`.

  The score of the code alone gives the generator no gradient.
  """
  return -tf.reduce_mean(tf.add_n(list(generated)))
