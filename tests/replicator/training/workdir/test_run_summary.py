"""The first lines of a run."""

from replicator.training.workdir import run_summary

import pytest

FACTS = {"strategy": "mirrored", "num_replicas": 2, "num_workers": 1, "precision": "float32",
         "seed": 3, "global_batch_size": 64,
         "machine": {"cores": 4, "devices": ["/device:CPU:0"], "accelerators": []}}


@pytest.fixture(autouse=True)
def without_gpus(monkeypatch):
  monkeypatch.setattr(run_summary, "gpus", list)


def test_a_line_for_each_subject():
  networks = {"generator": 1234567, "critic": 89}
  assert list(run_summary.lines(FACTS, "Digits, 1,797 examples", networks)) == [
      "devices     CPU, 4 cores",
      "strategy    mirrored, 2 replicas, float32, seed 3",
      "data        Digits, 1,797 examples, batches of 64",
      "networks    generator 1,234,567, critic 89 parameters"]


def test_xla_is_said():
  _, strategy, _ = run_summary.lines({**FACTS, "jit_compile": True}, "made by the step", {})
  assert strategy == "strategy    mirrored, 2 replicas, float32, XLA, seed 3"


@pytest.mark.parametrize("machine, text", [
    ({"cores": 1}, "CPU, 1 core"),
    ({"devices": ["CPU:0", "CPU:1"]}, "CPU, 4 cores, as 2 devices"),
    ({"accelerators": ["NVIDIA H200", "NVIDIA H200", "TPU"]}, "2 x NVIDIA H200, 1 x TPU")])
def test_devices_and_workers_are_counted_and_no_networks_have_no_line(machine, text):
  facts = {**FACTS, "machine": {**FACTS["machine"], **machine}, "num_workers": 2, "num_replicas": 1}
  devices, strategy, _ = run_summary.lines(facts, "made by the step", {})
  assert devices == f"devices     {text}"
  assert strategy == "strategy    mirrored, 1 replica, 2 workers, float32, seed 3"


def test_a_gpu_that_tensorflow_cannot_use_is_named(monkeypatch):
  monkeypatch.setattr(run_summary, "gpus", lambda: ["NVIDIA H200", "Tesla T4"])
  line, *_ = run_summary.lines(FACTS, "x", {})
  assert line == ("devices     CPU, 4 cores. The GPU (NVIDIA H200) is not used: TensorFlow was "
                  "installed without its CUDA libraries; pip install 'tensorflow[and-cuda]'")
  used = {**FACTS["machine"], "accelerators": ["NVIDIA H200"]}
  assert "not used" not in next(run_summary.lines({**FACTS, "machine": used}, "x", {}))


def test_the_gpus_are_those_of_the_driver(tmp_path, monkeypatch):
  monkeypatch.undo()
  monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
  for number in (1, 0):
    (tmp_path / f"0000:0{number}:00.0").mkdir()
    (tmp_path / f"0000:0{number}:00.0" / "information").write_text(
        f"Model: \t\t NVIDIA H20{number}\nIRQ:   \t\t 255\n")
  assert run_summary.gpus(tmp_path) == ["NVIDIA H200", "NVIDIA H201"]
  assert run_summary.gpus(tmp_path / "none") == []
  for visible, count in (("1", 2), ("", 0), ("-1", 0)):  # Hidden by the user.
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert len(run_summary.gpus(tmp_path)) == count
