"""Predicts how ResNet-50, BigGAN-128 and D4PG scale, and draws `docs/scaling.png`.

  python -m benchmarks.scaling_predictions [--output=docs/scaling.png]

The seconds of one replica are published numbers or measured here; the comments say which. The
collectives are those of this library's steps, with float32 gradients.
"""

from absl import app, flags

from replicator.doctor.scaling import report
from replicator.doctor.scaling.model import NETWORKS, Prediction
from replicator.step.context import Transfer

FLAGS = flags.FLAGS
flags.DEFINE_string("output", "docs/scaling.png", "The picture.")

# 256 images a replica. One A100 trains 2,375 a second in mixed precision with XLA: NVIDIA's
# DeepLearningExamples, TensorFlow/Classification/ConvNets/resnet50v1.5, "Training performance".
# Its batch norm is that of one replica, and its 25,557,032 gradients are one sum.
RESNET = Prediction(256 / 2375, [Transfer("all_reduce", 4 * 25_557_032)])

# 16 images a replica, so that 128 replicas have the paper's batch of 2,048 (arXiv:1809.11096, which
# trained on 128 TPU v3 cores). Eight V100 in float32 make 150,000 steps of 2,048 images in 15 days,
# with one update of D and one of G: README of ajbrock/BigGAN-PyTorch. For 16 images, each takes a
# sixteenth of such a step. What the eight sent to each other is in that time.
#
# G and D have 70,433,988 and 87,982,370 parameters (google/compare_gan, resnet_biggan.py). The 11
# batch norms of G have these multiples of 96 channels. Each gathers its means and variances in
# both passes through G, and sums two numbers a channel for the gradients in the update of G.
BIGGAN_CHANNELS = [96 * width for width in (16, 16, 16, 8, 8, 4, 4, 2, 2, 1, 1)]
BIGGAN = Prediction(15 * 24 * 3600 / 150_000 / 16, [
    Transfer("all_reduce", 4 * 87_982_370), Transfer("all_reduce", 4 * 70_433_988),
    *2 * [Transfer("all_gather", 4 * 2 * channels) for channels in BIGGAN_CHANNELS],
    *[Transfer("all_reduce", 4 * 2 * channels) for channels in BIGGAN_CHANNELS]])

# 256 transitions a replica, with the networks of Acme's agent for the walker. On 2 cores of an AMD
# EPYC, `python -m benchmarks.d4pg_step` measured 83.6 steps a second (docs/results.md). This counts
# the sums:
#
#   python -m replicator.doctor --scaling --experiment=experiments.d4pg \
#     --gin_file=configs/d4pg_walker_walk.gin
D4PG = Prediction(1 / 83.6, [Transfer("all_reduce", 1_698_816), Transfer("all_reduce", 562_176)])

PANELS = {"ResNet-50, 256 images each on an A100": RESNET,
          "BigGAN-128, 16 images each on a V100": BIGGAN,
          "D4PG, 256 transitions each on 2 cores": D4PG}


def main(argv: list[str]) -> None:
  del argv
  for title, prediction in PANELS.items():
    print(f"{title}, {1000 * prediction.seconds:.1f} ms a step: "
          f"{report.counted(prediction.transfers)}")
    print(*report.table(prediction, NETWORKS), sep="\n")
  report.draw(FLAGS.output, {title: (prediction, NETWORKS) for title, prediction in PANELS.items()})
  print(f"drawn: {FLAGS.output}")


if __name__ == "__main__":
  app.run(main)
