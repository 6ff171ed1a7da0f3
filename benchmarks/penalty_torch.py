"""The discriminator step of `benchmarks.penalty_step` in eager PyTorch.

The networks are those of `models.gan.networks.r3gan`, with PyTorch's own grouped convolutions, and
depthwise convolutions for resampling. Tensors have PyTorch's default layout.
"""

import itertools
from collections.abc import Callable

from benchmarks import turns

import torch
from torch import nn
from torch.nn import functional as F

_GAIN = (2 / 1.04) ** 0.5


def make_step(resolution: int, channels: int, widths: tuple[int, ...], batch_size: int,
              gamma: float) -> Callable[[], float]:
  """A function that takes one step of the discriminator and returns its loss.

  Args:
    resolution: of the images.
    channels: of the images.
    widths: channels of each stage, from 4x4 up.
    batch_size: number of real images, and of generated ones.
    gamma: the weight of R1 and R2; 0 for a step without them.
  """
  turns.torch_device()
  generator = TorchGenerator(channels, widths)
  discriminator = TorchDiscriminator(channels, widths)
  optimizer = torch.optim.Adam(discriminator.parameters(), 2e-4, betas=(0.0, 0.9), fused=True)
  images = torch.empty(batch_size, channels, resolution, resolution).uniform_(-1, 1)

  def step() -> float:
    with torch.no_grad():
      fakes = generator(torch.randn(batch_size, 64))
    seen = torch.cat([images, fakes]).requires_grad_(gamma > 0)
    scores = discriminator(seen)
    real, fake = scores.chunk(2)
    loss = F.softplus(fake - real).mean()
    if gamma:  # One pass forwards and one backwards for the loss, R1 and R2.
      [gradients] = torch.autograd.grad(scores.sum(), seen, create_graph=True)
      loss = loss + gamma / 2 * gradients.square().sum() / batch_size
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.item()

  return step


class TorchBlock(nn.Module):
  def __init__(self, width, blocks):
    super().__init__()
    self.expand = _conv(width, 2 * width, 1, bias=True, gain=_GAIN * blocks ** -0.25)
    self.mix = _conv(2 * width, 2 * width, 3, groups=max(width // 8, 1), bias=True,
                     gain=_GAIN * blocks ** -0.25)
    self.reduce = _conv(2 * width, width, 1, gain=0.0)

  def forward(self, x):
    y = F.leaky_relu(self.mix(F.leaky_relu(self.expand(x), 0.2)), 0.2)
    return x + self.reduce(y)


class TorchResample(nn.Module):
  def __init__(self, inputs, width, up):
    super().__init__()
    self.up = up
    self.conv = nn.Identity() if inputs == width else _conv(inputs, width, 1)
    taps = torch.tensor([1.0, 3.0, 3.0, 1.0]) / 8
    channels = width if up else inputs
    kernel = torch.outer(taps, taps).expand(channels, 1, 4, 4) * (4 if up else 1)
    self.register_buffer("kernel", kernel.contiguous())

  def forward(self, x):
    groups = self.kernel.shape[0]
    if self.up:
      return F.conv_transpose2d(self.conv(x), self.kernel, stride=2, padding=1, groups=groups)
    return self.conv(F.conv2d(x, self.kernel, stride=2, padding=1, groups=groups))


class TorchGenerator(nn.Module):
  def __init__(self, channels, widths):
    super().__init__()
    self.base = nn.Parameter(torch.randn(widths[0], 4, 4))
    self.linear = nn.Linear(64, widths[0], bias=False)
    blocks = 2 * len(widths)
    layers = [TorchBlock(widths[0], blocks), TorchBlock(widths[0], blocks)]
    for inputs, width in itertools.pairwise(widths):
      layers += [TorchResample(inputs, width, up=True), TorchBlock(width, blocks),
                 TorchBlock(width, blocks)]
    self.trunk = nn.Sequential(*layers, _conv(widths[-1], channels, 1))

  def forward(self, z):
    return self.trunk(self.base * self.linear(z)[..., None, None])


class TorchDiscriminator(nn.Module):
  def __init__(self, channels, widths):
    super().__init__()
    blocks = 2 * len(widths)
    layers = [_conv(channels, widths[-1], 1)]
    for width, inputs in zip(widths[-2::-1], widths[:0:-1], strict=True):
      layers += [TorchBlock(inputs, blocks), TorchBlock(inputs, blocks),
                 TorchResample(inputs, width, up=False)]
    layers += [TorchBlock(widths[0], blocks), TorchBlock(widths[0], blocks)]
    self.trunk = nn.Sequential(*layers)
    self.base = nn.Parameter(torch.randn(widths[0], 4, 4) / 4)
    self.linear = nn.Linear(widths[0], 1, bias=False)

  def forward(self, images):
    return self.linear((self.trunk(images) * self.base).sum((2, 3)))[:, 0]


def _conv(inputs, outputs, size, groups=1, bias=False, gain=1.0):
  layer = nn.Conv2d(inputs, outputs, size, padding=size // 2, groups=groups, bias=bias)
  nn.init.normal_(layer.weight, std=gain * (inputs // groups * size ** 2) ** -0.5)
  if bias:
    nn.init.zeros_(layer.bias)
  return layer
