"""Keras computes with TensorFlow, whatever the machine asks for."""

import os
import sys
import types

from replicator.console.keras_backend import use_tensorflow
from tests.programs.refusals import refusal

import pytest


@pytest.mark.parametrize("variable, file, said", [
    ("", None, None), ("tensorflow", '{"backend": "torch"}', None),
    ("", '{"backend": "jax"}', "jax"),
    ("", "{torn", None), ("torch", None, "torch"), ("", "[]", None)])
def test_another_backend_is_not_used_and_that_is_said(variable, file, said, tmp_path, monkeypatch,
                                                      capsys):
  monkeypatch.delitem(sys.modules, "keras")
  monkeypatch.setenv("KERAS_BACKEND", variable)
  monkeypatch.setenv("KERAS_HOME", str(tmp_path))
  if file:
    (tmp_path / "keras.json").write_text(file)
  use_tensorflow()
  printed = capsys.readouterr().err
  assert (f"the backend {said}; " in printed) if said else not printed
  assert os.environ["KERAS_BACKEND"] == ("tensorflow" if said else variable)


def test_keras_with_another_backend_is_refused(monkeypatch):
  config = types.SimpleNamespace(backend=lambda: "jax")
  monkeypatch.setitem(sys.modules, "keras", types.SimpleNamespace(config=config))
  assert "import replicator before keras" in refusal(use_tensorflow)
