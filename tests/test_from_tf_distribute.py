"""A loop of one's own for `tf.distribute`, and what the page on it makes of it."""

import re

import replicator
from replicator.app import config
from tests.pages import changes, diff_of
from tests.programs import distributed_loop_ported
from tests.programs.logs import rows
from tests.programs.processes import forked

import pytest

MOST_ADDED = 20


def test_the_page_shows_the_few_lines_that_come_and_those_that_go():
  shown = diff_of("tf_distribute")
  assert shown == changes("distributed_loop", "distributed_loop_ported")
  added, removed = ([line for line in shown if line.startswith(sign)] for sign in "+-")
  assert len(added) <= MOST_ADDED and len(removed) >= 2 * len(added)


@pytest.mark.slow
def test_the_loop_trains(tmp_path):
  # By itself: TensorFlow's collectives fail at times in a process that has made others.
  done = forked("-c", "from tests.programs import distributed_loop; "
                f"distributed_loop.main({str(tmp_path)!r}, epochs=1)")
  assert re.match(r"epoch 0: loss [12]\.\d+, accuracy 0\.\d+\n", done.stdout)


def test_the_ported_program_trains_the_same_on_two_replicas(tmp_path, capsys):
  config.parse([], ["train.precision = 'float64'", "train.eval_every = 2",
                    "Replicator.strategy = 'mirrored'", "Replicator.logical_cpus = 2"])
  replicator.train(distributed_loop_ported.Classifier, lambda: distributed_loop_ported.digits()[0],
                   distributed_loop_ported.evaluate, workdir=str(tmp_path), steps=2)
  said = capsys.readouterr().out
  assert "warning" not in said
  assert float(re.search(r"first step: same as on one device, (\S+)", said)[1]) < 1e-12
  assert [row["step"] for row in rows(tmp_path) if "eval/accuracy" in row] == [0, 2]
