"""The networks of GANs have the sizes that were published."""

from models.gan.networks.biggan import BigGANDiscriminator, BigGANGenerator
from models.gan.networks.biggan_deep import BigGANDeepDiscriminator, BigGANDeepGenerator
from models.gan.networks.dcgan import DCGANDiscriminator, DCGANGenerator
from models.gan.networks.r3gan import R3GANDiscriminator, R3GANGenerator
from models.gan.networks.sngan import SNGANDiscriminator, SNGANGenerator

import keras
import numpy as np
import pytest

IMAGENET = {"num_classes": 1000}
R3GAN_IMAGENET = {"widths": (1536,) * 4, "groups": (96,) * 4, **IMAGENET}
CIFAR = {"num_classes": 10, "attention": 16}

SIZES = [
    # The arithmetic of the tables of Miyato et al. 2018, without classes.
    (SNGANGenerator, 32, {}, 4_276_739), (SNGANDiscriminator, 32, {}, 1_053_824),
    # The weights that Newmu/dcgan_code lists for 64 pixels (faces/train_uncond_dcgan.py): gw, gg,
    # gb, ... and dw, dw2, dg2, db2, ...; then biases instead of factors and offsets.
    (DCGANGenerator, 64, {}, 18_885_760), (DCGANDiscriminator, 64, {}, 17_232_768),
    (DCGANDiscriminator, 64, {"batch_norm": False}, 17_230_976),
    # google/compare_gan, resnet_biggan.py; PyTorch-StudioGAN's log of ImageNet-128 agrees.
    (BigGANGenerator, 128, IMAGENET, 70_433_988), (BigGANDiscriminator, 128, IMAGENET, 87_982_370),
    # google/compare_gan, resnet_biggan_deep_test.py.
    (BigGANDeepGenerator, 128, IMAGENET, 50_244_484),
    (BigGANDeepDiscriminator, 128, IMAGENET, 34_590_210),
    # Counted from the authors' code (brownvc/R3GAN, Networks.py and the presets of train.py).
    (R3GANGenerator, 32, {"num_classes": 10}, 20_781_952),
    (R3GANDiscriminator, 32, {"num_classes": 10}, 21_280_512),
    (R3GANGenerator, 256, {}, 23_057_952), (R3GANDiscriminator, 256, {}, 23_009_568),
    (R3GANGenerator, 32, R3GAN_IMAGENET, 82_914_304),
    (R3GANDiscriminator, 32, R3GAN_IMAGENET, 86_548_992),
    # ajbrock/BigGAN-PyTorch. compare_gan's 98,635,298 is without the shortcut 768 -> 768.
    (BigGANGenerator, 256, {"latent_dim": 140, **IMAGENET}, 82_235_844),
    (BigGANDiscriminator, 256, IMAGENET, 98_635_298 + 768 * 768 + 768),
    # compare_gan's G for 256 attends at 128 pixels.
    (BigGANGenerator, 256, {"latent_dim": 140, "attention": 128, **IMAGENET}, 82_097_604),
    # compare_gan's; its D is without the shortcuts 96 -> 96 and 768 -> 768.
    (BigGANGenerator, 512, {"latent_dim": 160, **IMAGENET}, 82_468_068),
    (BigGANDiscriminator, 512, IMAGENET, 98_801_378 + 96 * 96 + 96 + 768 * 768 + 768),
    # Derived from compare_gan's tables, with blocks_with_attention = 'B4' and 'B1'.
    (BigGANGenerator, 64, IMAGENET, 70_239_108),
    (BigGANDiscriminator, 64, {"attention": 32, **IMAGENET}, 87_752_258),
    # PyTorch-StudioGAN's log of BigGAN on CIFAR-10; then the discriminator of 256 channels of
    # ajbrock/BigGAN-PyTorch's script.
    (BigGANGenerator, 32, {"latent_dim": 80, **CIFAR}, 9_416_196),
    (BigGANDiscriminator, 32, CIFAR, 2_415_170),
    (BigGANDiscriminator, 32, {"base_channels": 128, "num_classes": 10}, 4_207_361),
    # Derived from compare_gan's tables, z 128.
    (BigGANDeepGenerator, 256, IMAGENET, 55_736_708),
    (BigGANDeepDiscriminator, 256, IMAGENET, 38_247_426),
    (BigGANDeepGenerator, 512, IMAGENET, 56_019_780),
    (BigGANDeepDiscriminator, 512, IMAGENET, 38_301_122)]


@pytest.mark.parametrize("network, resolution, options, parameters", SIZES)
def test_published_sizes(network, resolution, options, parameters):
  # Without values: only the shapes count.
  with keras.StatelessScope(initialize_variables=False):
    variables = network(resolution, **options).trainable_variables
  keras.backend.clear_session()  # Or Keras would make the values at the next opportunity.
  assert sum(int(np.prod(v.shape)) for v in variables) == parameters
