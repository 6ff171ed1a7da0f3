"""What trackers read of a workdir."""

from replicator.trackers import run_log


def test_a_run_is_described_by_its_files(workdir):
  run = run_log.describe(workdir.folder, "id")
  assert (run.id, run.name, run.experiment, run.group) == ("id", "digits", "sngan", "")
  assert run.workdir == workdir.folder
  assert run.config == {
      "train.steps": 40, "train.trackers": "[@MLflow()]", "Network.widths": (8, 16),
      "Network.activation": "@relu", "deep/Network.name": "a b"}


def test_the_trials_of_a_sweep_are_a_group(tmp_path):
  from tests.replicator.trackers.conftest import Workdir
  workdir = Workdir(tmp_path / "rates" / "trials" / "rate=0.1_12345678")
  (workdir.folder / "trial.json").write_text("{}")
  run = run_log.describe(workdir.folder, "id")
  assert (run.name, run.group) == ("rate=0.1_12345678", "rates")


def test_ids_last_until_they_are_renewed(tmp_path):
  ids = run_log.Ids(tmp_path)
  one, two = ids.of("MLflow"), ids.of("WandB")
  assert one != two and len(one) == 16
  assert (run_log.Ids(tmp_path).of("MLflow"), run_log.Ids(tmp_path).of("WandB")) == (one, two)
  renewed = ids.renew("MLflow")
  assert renewed not in (one, two)
  assert (ids.of("MLflow"), ids.of("WandB")) == (renewed, two)


def test_a_file_of_ids_that_cannot_be_read_is_made_again(tmp_path):
  (tmp_path / run_log.FILE).write_text("[")
  ids = run_log.Ids(tmp_path)
  assert ids.of("MLflow") == ids.of("MLflow")


def test_lines_are_read_once_and_in_order(workdir):
  workdir.log(0, 20)
  log = run_log.Log(workdir.folder, 4)
  assert [line.step for line in log.up_to(10)] == [6, 8, 10]
  assert [line.step for line in log.up_to(10)] == []
  assert [line.step for line in log.up_to(float("inf"))] == [12, 14, 16, 18, 20]


def test_numbers_that_are_not_finite_are_numbers(workdir):
  (workdir.folder / "metrics.jsonl").write_text('{"step": 1, "a": "NaN", "b": "-Infinity"}\n')
  (line,) = run_log.Log(workdir.folder, -1).up_to(1)
  assert str(line.scalars) == "{'a': nan, 'b': -inf}"


def test_a_run_that_has_logged_nothing_has_no_lines(workdir):
  assert not list(run_log.Log(workdir.folder, -1).up_to(10))
