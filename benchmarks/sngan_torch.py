"""The SN-GAN step of `benchmarks.sngan_step` in eager PyTorch, with channels_last tensors."""

from collections.abc import Callable

from benchmarks import turns

import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils.parametrizations import spectral_norm


def make_step(batch_size: int, width_multiplier: float, precision: str) -> Callable[[], float]:
  """A function that takes one training step and returns the discriminator's loss."""
  device = turns.torch_device()
  channels_last = {"memory_format": torch.channels_last}
  generator = TorchGenerator(round(256 * width_multiplier)).to(**channels_last)
  discriminator = TorchDiscriminator(round(128 * width_multiplier)).to(**channels_last)
  g_optimizer = torch.optim.Adam(generator.parameters(), 2e-4, betas=(0.0, 0.9))
  d_optimizer = torch.optim.Adam(discriminator.parameters(), 2e-4, betas=(0.0, 0.9))
  images = torch.empty(batch_size, 3, 32, 32).uniform_(-1, 1).to(**channels_last)

  def autocast():
    return torch.autocast(device, torch.bfloat16, enabled=precision == "mixed_bfloat16")

  def step() -> float:
    with autocast():
      with torch.no_grad():
        fake = generator(torch.randn(batch_size, 128))
      real_scores, fake_scores = discriminator(torch.cat([images, fake])).float().chunk(2)
      d_loss = F.relu(1 - real_scores).mean() + F.relu(1 + fake_scores).mean()
    d_optimizer.zero_grad()
    d_loss.backward()
    d_optimizer.step()
    discriminator.requires_grad_(False)
    with autocast():
      g_loss = -discriminator(generator(torch.randn(batch_size, 128))).float().mean()
    g_optimizer.zero_grad()
    g_loss.backward()
    g_optimizer.step()
    discriminator.requires_grad_(True)
    return d_loss.item()

  return step


class TorchUpBlock(nn.Module):
  def __init__(self, filters):
    super().__init__()
    self.norm1, self.norm2 = nn.BatchNorm2d(filters), nn.BatchNorm2d(filters)
    self.conv1 = nn.Conv2d(filters, filters, 3, padding=1)
    self.conv2 = nn.Conv2d(filters, filters, 3, padding=1)
    self.shortcut = nn.Conv2d(filters, filters, 1)

  def forward(self, inputs):
    x = self.conv1(F.interpolate(F.relu(self.norm1(inputs)), scale_factor=2))
    x = self.conv2(F.relu(self.norm2(x)))
    return x + self.shortcut(F.interpolate(inputs, scale_factor=2))


class TorchGenerator(nn.Module):
  def __init__(self, filters):
    super().__init__()
    self.filters = filters
    self.linear = nn.Linear(128, 4 * 4 * filters)
    self.blocks = nn.Sequential(*[TorchUpBlock(filters) for _ in range(3)])
    self.norm = nn.BatchNorm2d(filters)
    self.to_image = nn.Conv2d(filters, 3, 3, padding=1)

  def forward(self, z):
    x = self.linear(z).view(-1, self.filters, 4, 4).contiguous(memory_format=torch.channels_last)
    return torch.tanh(self.to_image(F.relu(self.norm(self.blocks(x)))))


class TorchDownBlock(nn.Module):
  def __init__(self, inputs, filters, halve, first):
    super().__init__()
    self.halve, self.first = halve, first
    self.conv1 = spectral_norm(nn.Conv2d(inputs, filters, 3, padding=1))
    self.conv2 = spectral_norm(nn.Conv2d(filters, filters, 3, padding=1))
    self.shortcut = spectral_norm(nn.Conv2d(inputs, filters, 1)) if halve else nn.Identity()

  def forward(self, inputs):
    x = self.conv1(inputs if self.first else F.relu(inputs))
    x = self.conv2(F.relu(x))
    if self.first:
      return F.avg_pool2d(x, 2) + self.shortcut(F.avg_pool2d(inputs, 2))
    x = x + self.shortcut(inputs)
    return F.avg_pool2d(x, 2) if self.halve else x


class TorchDiscriminator(nn.Module):
  def __init__(self, filters):
    super().__init__()
    self.blocks = nn.Sequential(
        TorchDownBlock(3, filters, halve=True, first=True),
        TorchDownBlock(filters, filters, halve=True, first=False),
        TorchDownBlock(filters, filters, halve=False, first=False),
        TorchDownBlock(filters, filters, halve=False, first=False))
    self.linear = spectral_norm(nn.Linear(filters, 1, bias=False))

  def forward(self, images):
    return self.linear(F.relu(self.blocks(images)).sum(dim=(2, 3)))
