"""The runs of the doctor, what it records, and the table of its variants."""

import itertools

import replicator
from replicator import UsageError
from replicator.doctor import replica_check
from replicator.doctor.replica_recording import ReplicaRecording
from replicator.doctor.verdict import AGREES, DIFFERS, FAILED, SKIPPED
from replicator.training.checks import inspection
from tests.programs import planted_bugs
from tests.replicator.doctor.checks import examine, quantities

import pytest


def test_an_experiment_that_cannot_be_examined_says_why():
  with pytest.raises(UsageError, match=r"did not call replicator\.train"):
    examine(main=lambda workdir: None)
  fixed = lambda workdir: replicator.train(
      planted_bugs.Regression, planted_bugs.Points(), workdir=workdir, precision="float32")
  with pytest.raises(UsageError, match=r"passes precision = 'float32' .* leave train.precision"):
    examine(main=fixed)


def rows(recordings: dict, words=None, **seen):
  """The table of a step whose loss `a` is known, by replicas and micro-batches, or its values."""
  check = replica_check.ReplicaCheck(lambda workdir: None, [], [])
  evidence = inspection.Evidence(lambda: None)
  vars(evidence).update(batch_size=8, **seen)

  def record(replicas: int, microbatches: int = 1) -> ReplicaRecording:
    found = recordings.get((replicas, microbatches), 1.0)
    if isinstance(found, Exception):
      raise found
    found = next(found) if hasattr(found, "__next__") else found
    values = found if isinstance(found, dict) else quantities("loss", a=found)
    return ReplicaRecording(values, evidence)
  check._record, check._devices, check.reference = record, 1 if words else 2, record(1)
  return list(check.results(words))


def test_each_row_has_its_own_replicas():
  # A clipping that changes nothing is no difference.
  found = rows({(4, 1): 1.5}, clips=["tf.clip_by_norm"])
  assert [(row.check, row.verdict) for row in found] == [
      ("2 replicas", AGREES), ("4 replicas", DIFFERS), ("2 micro-batches", SKIPPED),
      ("2 processes", SKIPPED)]
  assert found[2].detail == "the step does not call replicator.microbatch"
  assert found[3].detail == "Replicator.devices_per_replica works only in one process"
  assert "exactly 1/4" in rows({(4, 1): 0.25})[1].notes[1]


def test_what_agrees_is_named_where_only_a_logged_scalar_differs():
  trained = quantities("gradient", u__w=1.0) | quantities("variable", w=[1.0, 2.0])
  one, other = (trained | quantities("loss", loss=1.0, deviation=value) for value in (0.5, 0.7))
  assert rows({(1, 1): one, (2, 1): other})[0].notes[2:] == (
      "still agree: all gradients and all variables",)
  other |= quantities("variable", w=[1.0, 3.0]) | quantities("gradient", u__w=1.1)
  assert rows({(1, 1): one, (2, 1): other})[0].notes[2:] == ()


def test_weights_that_differ_are_no_proof_that_the_step_draws():
  weights = lambda: (quantities("variable", 0, w=value) for value in itertools.count())
  cause = rows({(1, 1): weights(), (2, 1): quantities("variable", 0, w=9.0)})[0].notes[1]
  assert cause.startswith("likely cause: initial weights differ")
  losses = map(float, itertools.count())
  assert "not deterministic" in rows({(1, 1): losses, (2, 1): 9.0})[0].notes[1]


def test_a_variant_that_is_refused_says_so_in_one_line():
  two, four, *_ = rows({(2, 1): UsageError("step.py:3: no such\nIn call to train"),
                       (4, 1): UsageError("6: does not divide evenly among the 4")})
  assert (two.verdict, two.detail, two.notes) == (FAILED, "step.py:3: no such", ())
  assert (four.verdict, four.detail[-11:]) == (SKIPPED, "among the 4")
  row = rows({(1, 2): UsageError("in parts")}, microbatched=True)[2]
  assert (row.verdict, row.detail) == (FAILED, "in parts")


def test_two_processes_are_compared_by_what_their_chief_recorded(monkeypatch):
  def recorded_by(words, workers):
    assert (words, workers) == (["--experiment=x"], 2)
    return ReplicaRecording(quantities("loss", a=2.0), inspection.Evidence(lambda: None))
  monkeypatch.setattr(replica_check, "recorded_by", recorded_by)
  row = rows({}, words=["--experiment=x"])[3]
  assert (row.check, row.verdict) == ("2 processes", DIFFERS)
  assert "a sum over replicas: the loss 'a' is exactly 2 times as large" in row.notes[1]


def test_a_program_that_chooses_its_strategy_in_python_is_compared():
  def main(workdir):
    replicator.train(planted_bugs.Regression, planted_bugs.Points(), workdir=workdir, steps=100,
                     eval_every=10, steps_per_call=10,
                     replicator=replicator.Replicator("mirrored", logical_cpus=2))
  check = replica_check.ReplicaCheck(main, [], ["train.global_batch_size = 8"], steps=2)
  check.prepare()
  assert next(check.results([])).verdict == AGREES
  assert check.reference.quantities.keys() and check.reference.evidence.batch_size == 8
