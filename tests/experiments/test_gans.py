"""Every GAN: no strategy changes its training, and its samples are of the averaged generator."""

import numpy as np
import pytest
import tensorflow as tf

import replicator
from models.gan.networks.building import check_images
from models.vision.images.image_source import InMemoryImages
from replicator.step import context
from tests.experiments import tiny_gans
from tests.experiments.tiny_gans import GANS, MIRRORED, assert_same_training, build, train
from tests.programs.capabilities import eagerly
from tests.programs.processes import launched

ONE = ["Replicator.strategy = 'one_device'"]
CENTRAL = ["Replicator.strategy = 'central_storage'", "Replicator.logical_cpus = 2"]
# The second step depends on the variables that the first one leaves.
FLOAT64 = ["train.precision = 'float64'", "train.steps = 2", "train.checkpoint_every = 2"]


@pytest.fixture(scope="module")
def one(tmp_path_factory):
  """The folder of a training on one device, which is trained once for all tests.

  It is not compiled, which would take longer than its few steps.
  """
  folders = {}

  def of(name: str, *bindings: str):
    if (name, bindings) not in folders:
      folders[name, bindings] = tmp_path_factory.mktemp(name)
      with eagerly():
        train(folders[name, bindings], name, *FLOAT64, *ONE, *bindings)
    return folders[name, bindings]

  return of


SLOW = pytest.mark.slow
COMPILED = [pytest.param("gan", MIRRORED[2], (), id="gan-2 replicas"),
            pytest.param("logan", MIRRORED[2], ("LOGAN.discriminator_updates = 1",),
                         id="logan-2 replicas", marks=SLOW),
            pytest.param("sngan", CENTRAL, ("SNGAN.discriminator_updates = 1",),
                         id="sngan-central storage", marks=SLOW),
            # Its networks have no batch statistics, which are those of a micro-batch.
            pytest.param("r3gan", ["microbatch.n = 4"], (), id="r3gan-micro-batches", marks=SLOW)]


@pytest.mark.parametrize(("name", "bindings", "settings"), COMPILED)
def test_however_it_is_divided_the_training_is_the_same(name, bindings, settings, one, tmp_path):
  train(tmp_path, name, *FLOAT64, *bindings, *settings)
  assert_same_training(tmp_path, one(name, *settings))


@pytest.mark.slow
@pytest.mark.parametrize(("name", "replicas", "settings"), [
    ("bigan", 2, ()), ("bigbigan", 2, ()), ("r3gan", 2, ()), ("gan", 4, ()),
    # Statistics cover one micro-batch over all replicas, not the full batch.
    ("gan", 2, ("microbatch.n = 2", "GAN.discriminator_updates = 1"))])
def test_replicas_do_not_change_the_training_line_by_line(name, replicas, settings, one, tmp_path):
  with eagerly():
    train(tmp_path, name, *FLOAT64, *MIRRORED[replicas], *settings)
  assert_same_training(tmp_path, one(name, *settings))


def launch(workdir, name: str, *bindings: str) -> None:
  """Trains a tiny GAN in two processes."""
  launched(["--workers=2"], f"experiments.{name}", f"--gin_file=configs/{GANS[name].file}.gin",
           f"--workdir={workdir}", bindings=tiny_gans.settings(name, *bindings))


@pytest.mark.slow
def test_float32_agrees_over_the_first_steps(tmp_path):
  # Later, GAN dynamics amplify the rounding errors, so equality is proved in float64.
  with eagerly():
    expected = train(tmp_path / "one", "gan", "train.steps = 5")
  found = train(tmp_path / "two", "gan", "train.steps = 5", *MIRRORED[2])
  np.testing.assert_allclose(found, expected, rtol=1e-4)


@pytest.mark.slow
def test_step_compiles_under_xla_with_static_shapes():
  # A TPU runs this. The compiler knows the batch size, so no dimension is dynamic.
  gan = build("bigbigan", "BigBiGAN.discriminator_updates = 1", "BigBiGANDiscriminator.layers = 1",
              "BigBiGANEncoder.layers = 1")

  @tf.function(jit_compile=True, autograph=False)
  def step(number, batch):
    with context.entered(number, xla=True):
      return gan(batch)

  batch = {"image": tf.zeros([16, 8, 8, 1], tf.uint8), "label": tf.zeros([16], tf.int32)}
  graph = step.get_concrete_function(tf.constant(0, tf.int64), batch).graph
  dynamic = [o for op in graph.get_operations() if op.type in ("Conv2D", "MatMul")
             for o in op.outputs if not o.shape.is_fully_defined()]
  assert not dynamic
  assert all(np.isfinite(loss) for loss in step(tf.constant(0, tf.int64), batch).values())


# ---- One step -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", GANS)
def test_the_last_update_is_logged_and_samples_are_of_averaged_weights(name):
  gan = build(name)
  images = np.random.default_rng(0).integers(0, 256, [16, *GANS[name].image_shape], np.uint8)
  with context.entered(tf.constant(0, tf.int64)):  # Compiling it would take longer.
    scalars = gan({"image": tf.constant(images), "label": tf.zeros([16], tf.int32)})
  # It takes the second half of the batch; R3GAN's one update takes the first half.
  half = images[0 if name == "r3gan" else 1::2]
  np.testing.assert_allclose(scalars["data_variance"], np.mean(np.var(half / 127.5 - 1.0, axis=0)),
                             rtol=1e-5)
  assert 0 <= scalars["d_accuracy"] <= 1 and scalars["sample_variance"] > 0
  updates = {name: int(optimizer.keras_optimizer.iterations.numpy())
             for name, optimizer in gan.optimizers.items()}
  assert updates == {"discriminator": 1 if name == "r3gan" else 2, "generator": 1,
                     **({"encoder": 1} if hasattr(gan, "encoder") and gan.encoder else {})}
  z, labels = tf.random.normal([2, gan.latent_dim]), tf.constant([0, 1])
  before, raw = gan.generate(z, labels), gan.generator(z, labels)
  for variable in gan.generator.trainable_variables:
    variable.assign_add(tf.random.normal(variable.shape))
  assert np.abs(gan.generator(z, labels) - raw).max() > 0.01
  np.testing.assert_array_equal(gan.generate(z, labels), before)


@pytest.mark.parametrize("name", GANS)
def test_a_number_below_one_is_refused(name):
  step = GANS[name].step.__name__
  names = {"latent_dim"} | ({"discriminator_updates"} if name != "r3gan" else set())
  names |= {"generator_batch_ratio"} if name in ("sngan", "bigan", "gan") else set()
  for parameter in names:
    with pytest.raises(replicator.UsageError, match=f"{step}.{parameter} = 0: must be at least 1"):
      build(name, f"{step}.{parameter} = 0")


@pytest.mark.parametrize("height, width", [(16, 8), (8, 16)])
def test_images_that_are_no_squares_are_refused_with_what_to_do(height, width, tmp_path):
  images = np.zeros([3, height, width, 3], np.uint8)
  for gan in GANS.values():
    with pytest.raises(replicator.UsageError) as error:
      gan.main(str(tmp_path), data=lambda: InMemoryImages(images, np.zeros(3), ("all",)))
    assert str(error.value).splitlines()[0] == (
        f"InMemoryImages: has images of {height} x {width} pixels, and a GAN needs squares; cut "
        "them out: python -m models.vision.convert DATA OUT --shards=1 --resolution=8, and set "
        "TFRecords.path = 'OUT'")
  with pytest.raises(replicator.UsageError) as error:
    check_images("Net", (8, 8, 3), images)
  assert str(error.value) == (f"Net is built for images of 8 x 8 x 3 but was given {height} x "
                              f"{width} x 3: cut squares out of them")
