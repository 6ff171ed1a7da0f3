"""Networks with layers of `replicator` in files of Keras."""

import replicator
from replicator.console import keras_layers
from tests.programs.processes import python

import keras
import numpy as np
import pytest

LAYERS = {
    "GlobalBatchNorm": lambda: replicator.GlobalBatchNorm(0.5, 1e-2, center=False),
    "gamma_initializer": lambda: replicator.GlobalBatchNorm(
        gamma_initializer=keras.initializers.Constant(2.0), name="norm"),
    "Dropout": lambda: replicator.Dropout(0.25, [None, 1], stream="mine"),
    "SpectralNorm": lambda: replicator.SpectralNorm(keras.layers.Dense(3), power_iterations=2),
}


def test_every_public_layer_is_here():
  public = {name for name in dir(replicator) if isinstance(getattr(replicator, name), type)
            and issubclass(getattr(replicator, name), keras.layers.Layer)}
  assert public <= LAYERS.keys()


@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # In Keras.
@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("policy", ["float32", "mixed_bfloat16"])
def test_a_network_is_the_same_when_it_is_loaded(name, policy, tmp_path):
  keras.config.set_dtype_policy(policy)
  layer = LAYERS[name]()
  net = keras.Sequential([keras.Input([4]), keras.layers.Dense(5), layer])
  x = np.random.default_rng(0).normal(size=[8, 4]).astype(np.float32)
  for variable in net.variables:  # As training would.
    variable.assign(variable + 0.1)
  net.save(tmp_path / "net.keras")
  loaded = keras.models.load_model(tmp_path / "net.keras")
  np.testing.assert_array_equal(loaded(x), net(x))
  again = loaded.layers[-1]
  assert type(again) is type(layer) and again.dtype_policy.name == layer.dtype_policy.name
  settings = {key: value for key, value in layer.get_config().items()
              if isinstance(value, str | int | float | list)}
  assert settings == {key: again.get_config()[key] for key in settings}


@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # In Keras.
def test_a_layer_that_is_not_imported_yet_is_found_by_its_name(tmp_path, monkeypatch):
  net = keras.Sequential([keras.Input([4]), *(make() for make in LAYERS.values())])
  net.save(tmp_path / "net.keras")
  known = keras.saving.get_custom_objects()
  for name in keras_layers.LAYERS:
    monkeypatch.delitem(known, f"replicator>{name}")
  with pytest.raises(TypeError, match="Could not locate class 'GlobalBatchNorm'"):
    keras.models.load_model(tmp_path / "net.keras")
  keras_layers.register_layers()
  loaded = keras.models.load_model(tmp_path / "net.keras")
  assert [type(layer) for layer in loaded.layers] == [type(layer) for layer in net.layers]
  x = np.ones([2, 4], np.float32)
  np.testing.assert_array_equal(loaded(x), net(x))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # In Keras.
def test_the_import_of_replicator_alone_lets_keras_load_its_layers(tmp_path):
  net = keras.Sequential([keras.Input([4]), *(make() for make in LAYERS.values())])
  net.save(tmp_path / "net.keras")
  np.save(tmp_path / "x.npy", x := np.ones([2, 4], np.float32))
  for imports in ("import replicator, keras", "import keras, replicator"):
    python("-c", f"{imports}, numpy as np, sys\n"
           "loads = lambda: any(name.startswith('replicator.step') for name in sys.modules)\n"
           "assert not loads()\n"
           f"net = keras.models.load_model({str(tmp_path / 'net.keras')!r})\n"
           "assert loads()\n"
           f"np.save({str(tmp_path / 'y.npy')!r}, net(np.load({str(tmp_path / 'x.npy')!r})))")
    np.testing.assert_array_equal(np.load(tmp_path / "y.npy"), net(x))


def test_every_layer_is_known_to_keras_by_name():
  assert keras_layers.LAYERS.keys() == {type(make()).__name__ for make in LAYERS.values()}
