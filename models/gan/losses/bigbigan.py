"""The objective of BigBiGAN (Donahue and Simonyan 2019, arXiv:1907.02544, equations 3 and 4).

Each is a sum over three scores `[n]`: the joint one of (image, code) pairs, and the unary ones of
images and of codes. The authors' public notebook takes the mean of the three, a third of this.
"""

from collections.abc import Sequence

import tensorflow as tf

from models.gan.losses import adversarial


def discriminator_loss(real: Sequence[tf.Tensor], generated: Sequence[tf.Tensor]) -> tf.Tensor:
  """The hinge losses of the three scores, summed: `[n], [n] -> []`.

  Args:
    real: the scores of images and the codes that the encoder drew for them.
    generated: the scores of generated images and the codes that they were made from.
  """
  hinge = adversarial.hinge().discriminator
  return tf.add_n([hinge(*scores) for scores in zip(real, generated, strict=True)])


def encoder_loss(real: Sequence[tf.Tensor]) -> tf.Tensor:
  """Mean of the summed scores of real pairs, which the encoder makes look generated: `[n] -> []`.

  The score of the image alone gives the encoder no gradient.
  """
  return tf.reduce_mean(tf.add_n(list(real)))


def generator_loss(generated: Sequence[tf.Tensor]) -> tf.Tensor:
  """Minus the mean of the summed scores of generated pairs, which should look real: `[n] -> []`.

  The score of the code alone gives the generator no gradient.
  """
  return -encoder_loss(generated)
