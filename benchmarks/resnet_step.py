"""Images per second of ResNet's training step, against torchvision's.

  python -m benchmarks.resnet_step [--precision=mixed_bfloat16] [--batch_size=256]

One step is a forward and a backward pass, weight decay, and an update by SGD with momentum, for the
same network on the same images:

  ours      `experiments.resnet` without augmentation
  xla       the same, compiled by XLA
  torch     torchvision's network, eager with channels_last
  torch_c   the same, compiled by `torch.compile`

All use the GPU, if TensorFlow and PyTorch see one. They take turns as in `benchmarks.sngan_step`.
"""

from collections.abc import Callable

from benchmarks import turns

from absl import app, flags

FLAGS = flags.FLAGS
flags.DEFINE_enum("precision", "float32", ["float32", "mixed_bfloat16"],
                  "Keras dtype policy; PyTorch uses autocast for bfloat16.")
flags.DEFINE_integer("depth", 50, "Layers of the network.")
flags.DEFINE_integer("size", 224, "Height and width of the images in pixels.", lower_bound=32)
flags.DEFINE_integer("rounds", 10, "Turns of every contender.", lower_bound=1)
flags.DEFINE_integer("steps", 3, "Steps of one turn.", lower_bound=1)
flags.DEFINE_integer("batch_size", 32, "Images of a step.", lower_bound=1)
turns.define_flags(["ours", "xla", "torch", "torch_c"])


def ours() -> Callable[[], float]:
  """Makes the step of `experiments.resnet` without augmentation."""
  import replicator
  from experiments.resnet import ImageClassifier

  import gin
  import keras
  import tensorflow as tf

  keras.config.set_dtype_policy(FLAGS.precision)
  gin.bind_parameter("ResNet.depth", FLAGS.depth)
  runner = replicator.Replicator(jit_compile=FLAGS.contender == "xla")
  with runner.scope():
    classifier = ImageClassifier(1000, 3, weight_decay=1e-4, optimizer=lambda: keras.optimizers.SGD(
        0.1, momentum=0.9, nesterov=True))
  shape = [FLAGS.batch_size, FLAGS.size, FLAGS.size, 3]
  batch = {"image": tf.cast(tf.random.uniform(shape, 0, 256, tf.int32), tf.uint8),
           "label": tf.random.uniform([FLAGS.batch_size], 0, 1000, tf.int32)}
  return lambda: float(runner.run(classifier, batch)[0]["loss/network"])


def theirs() -> Callable[[], float]:
  """Makes the same step with torchvision's network, eager or compiled."""
  import torch
  import torchvision

  device = turns.torch_device()
  network = torchvision.models.get_model(f"resnet{FLAGS.depth}").to(
      memory_format=torch.channels_last)
  optimizer = torch.optim.SGD(network.parameters(), 0.1, momentum=0.9, nesterov=True,
                              weight_decay=1e-4)
  shape = [FLAGS.batch_size, 3, FLAGS.size, FLAGS.size]
  pixels = torch.randint(0, 256, shape, dtype=torch.uint8).to(memory_format=torch.channels_last)
  labels = torch.randint(0, 1000, [FLAGS.batch_size])
  compiled = torch.compile(network) if FLAGS.contender == "torch_c" else network

  def step() -> float:
    with torch.autocast(device, torch.bfloat16, enabled=FLAGS.precision == "mixed_bfloat16"):
      logits = compiled(pixels.float() / 127.5 - 1)
    loss = torch.nn.functional.cross_entropy(logits.float(), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.item()

  return step


def main(argv: list[str]) -> None:
  del argv
  if FLAGS.contender:
    turns.set_threads()
    turns.take(ours() if FLAGS.contender in ("ours", "xla") else theirs(), FLAGS.steps)
    return
  names = turns.installed({"ours": "tensorflow", "xla": "tensorflow", "torch": "torchvision",
                           "torch_c": "torchvision"})
  turns.compare("benchmarks.resnet_step", names, FLAGS.rounds, FLAGS.threads,
                amount=FLAGS.batch_size * FLAGS.steps, unit="images",
                title=f"ResNet-{FLAGS.depth} step, {FLAGS.size} px, batch {FLAGS.batch_size}, "
                      f"{FLAGS.precision}, turns of {FLAGS.steps} steps")


if __name__ == "__main__":
  app.run(main)
