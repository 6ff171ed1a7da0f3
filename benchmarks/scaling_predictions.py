"""Predicts how ResNet-50, BigGAN-128 and D4PG scale, and draws `docs/scaling.png`.

  python -m benchmarks.scaling_predictions [--output=docs/scaling.png]

The seconds of one replica are published numbers or measured here; the comments say which. The
collectives are those of this library's steps, with float32 gradients.
"""

import dataclasses

from replicator.step.hooks import Transfer
from replicator.tools.scaling.model import NETWORKS, REPLICAS, counted, efficiency, table

from absl import app, flags
from matplotlib.figure import Figure

FLAGS = flags.FLAGS
flags.DEFINE_string("output", "docs/scaling.png", "The picture.")


@dataclasses.dataclass(frozen=True)
class Step:
  """The cost of one replica's computation, and the collectives that it takes part in."""

  seconds: float
  transfers: list[Transfer]


# 256 images a replica. One A100 trains 2,375 a second in mixed precision with XLA: NVIDIA's
# DeepLearningExamples, TensorFlow/Classification/ConvNets/resnet50v1.5, "Training performance".
# Its batch norm is that of one replica, and its 25,557,032 gradients are one sum.
RESNET = Step(256 / 2375, [Transfer("all_reduce", 4 * 25_557_032)])

# 16 images a replica, so that 128 replicas have the paper's batch of 2,048 (arXiv:1809.11096, which
# trained on 128 TPU v3 cores). Eight V100 in float32 make 150,000 steps of 2,048 images in 15 days,
# with one update of D and one of G: README of ajbrock/BigGAN-PyTorch. For 16 images, each takes a
# sixteenth of such a step. What the eight sent to each other is in that time.
#
# G and D have 70,433,988 and 87,982,370 parameters (google/compare_gan, resnet_biggan.py). The 11
# batch norms of G have these multiples of 96 channels. Each gathers its means and variances in
# both passes through G, and sums two numbers a channel for the gradients in the update of G.
BIGGAN_CHANNELS = [96 * width for width in (16, 16, 16, 8, 8, 4, 4, 2, 2, 1, 1)]
BIGGAN = Step(15 * 24 * 3600 / 150_000 / 16, [
    Transfer("all_reduce", 4 * 87_982_370), Transfer("all_reduce", 4 * 70_433_988),
    *2 * [Transfer("all_gather", 4 * 2 * channels) for channels in BIGGAN_CHANNELS],
    *[Transfer("all_reduce", 4 * 2 * channels) for channels in BIGGAN_CHANNELS]])

# 256 transitions a replica, with the networks of Acme's agent for the walker. On 2 cores of an AMD
# EPYC, `python -m benchmarks.d4pg_step` measured 188.4 steps a second (docs/results/speed.md). This
# counts the sums:
#
#   replicator doctor --scaling --experiment=experiments.d4pg \
#     --gin_file=configs/d4pg_walker_walk.gin
D4PG = Step(1 / 188.4, [Transfer("all_reduce", 1_698_816), Transfer("all_reduce", 562_176)])

PANELS = {"ResNet-50, 256 images each on an A100": RESNET,
          "BigGAN-128, 16 images each on a V100": BIGGAN,
          "D4PG, 256 transitions each on 2 cores": D4PG}


def draw(path: str) -> None:
  """Draws a panel for each step, with a curve for each network, into a PNG file."""
  figure = Figure(figsize=(1.2 + 3.2 * len(PANELS), 3.2), layout="constrained")
  all_axes = figure.subplots(1, len(PANELS), sharey=True)
  for axes, (title, step) in zip(all_axes, PANELS.items(), strict=True):
    for name, network in NETWORKS.items():
      percent = [100 * efficiency(step.seconds, step.transfers, n, network) for n in REPLICAS]
      axes.plot(REPLICAS, percent, linewidth=1.5, linestyle="--", label=name)
    axes.set_title(title, fontsize=9)
    axes.set_xlabel("replicas", fontsize=8)
    axes.set_xscale("log", base=2)
    axes.set_xticks(REPLICAS, [str(replicas) for replicas in REPLICAS])
    axes.set_ylim(0, 102)
    axes.tick_params(labelsize=8, length=0)
    axes.grid(axis="y", color="#e5e7eb")
    axes.set_frame_on(False)
  all_axes[0].set_ylabel("predicted efficiency, %", fontsize=8)
  all_axes[-1].legend(fontsize=8, frameon=False)
  figure.savefig(path, dpi=110)


def main(argv: list[str]) -> None:
  del argv
  for title, step in PANELS.items():
    print(f"{title}, {1000 * step.seconds:.1f} ms a step: {counted(step.transfers)}")
    print(*table(step.seconds, step.transfers, NETWORKS), sep="\n")
  draw(FLAGS.output)
  print(f"drawn: {FLAGS.output}")


if __name__ == "__main__":
  app.run(main)
