"""A run whose workdir is a URL is the run in a folder, and leaves nothing here."""

import errno
import os
import tempfile
import threading

import replicator
from replicator import atomic
from replicator.errors import Preempted, RunFailed, UsageError
from replicator.tools import compare, rerun
from replicator.tools.storage import object_store, remote
from replicator.training import from_step
from replicator.training.checkpoints.store import steps_of
from replicator.training.workdir import claim, lock, places, reader
from tests.programs.counter import Counter
from tests.programs.logs import rows
from tests.programs.processes import forked
from tests.programs.refusals import refusal
from tests.programs.two_networks import Points, TwoNetworks
from tests.replicator.training.runs import stopping_at, train
from tests.replicator.training.workdir.test_lock import ELSEWHERE

import pytest

SETTING = ["train.steps = 10", "train.eval_every = 0", "train.log_every = 5",
           "train.checkpoint_every = 5"]


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
  """The folder for temporary files; nothing waits."""
  folder = tmp_path / "here"
  folder.mkdir()
  monkeypatch.setattr(tempfile, "tempdir", str(folder))
  monkeypatch.setattr(remote, "CACHE", tmp_path / "cache")
  monkeypatch.setattr(claim, "_CLAIM_SECONDS", 0.0)
  monkeypatch.setattr(claim, "WAIT_SECONDS", 0.0)
  yield folder
  claim.take_over(False)


@pytest.fixture
def url(tmp_path):
  """The URL of a run in a store, the folder `store/run`."""
  (tmp_path / "store").mkdir()
  return f"file://{tmp_path / 'store' / 'run'}"


def count(url: str, *bindings: str, before_call=None) -> Counter:
  return train(url, *SETTING, *bindings, step=Counter, before_call=before_call)


def broken(monkeypatch, fails) -> None:
  """The network is down whenever `fails()` is true."""
  put = object_store.ObjectStore._put

  def put_or_fail(self, *arguments) -> None:
    if fails():
      raise OSError("the network is down")
    put(self, *arguments)

  monkeypatch.setattr(object_store.ObjectStore, "_put", put_or_fail)


def test_a_run_is_stopped_and_goes_on_elsewhere(url, here, tmp_path, capsys):
  with pytest.raises(Preempted):
    count(url, before_call=stopping_at(7))
  store = tmp_path / "store" / "run"
  assert steps_of(store / "checkpoints") == [5, 8]
  # What was logged after the last checkpoint is taken back.
  with (store / "metrics.jsonl").open("a") as file:
    file.write('{"step": 9, "seconds": 1.0, "count": 0.0}\n')
  (store / "samples").mkdir()
  (store / "samples" / "step-00000009.png").write_text("picture")
  counter = count(url)
  assert counter.count.numpy() == 10
  assert [(row["step"], row["count"]) for row in rows(store)] == [(5, 3.0), (10, 8.0)]
  assert not (store / "samples" / "step-00000009.png").exists()
  assert steps_of(store / "checkpoints") == [5, 8, 10]
  assert not (store / claim.FILE).exists() and not list(here.iterdir())
  shown = capsys.readouterr()
  assert "resumed at step 8\n" in shown.out and f"done: {url}/report.html\n" in shown.out
  assert str(here) not in shown.out + shown.err


def test_a_checkpoint_that_cannot_be_sent_comes_with_the_next_one(
    url, here, tmp_path, monkeypatch, capsys):
  tries = iter([True])
  broken(monkeypatch, lambda: next(tries, False))
  count(url)
  assert steps_of(tmp_path / "store" / "run" / "checkpoints") == [5, 10]
  assert capsys.readouterr().err == (f"warning: {url}: lacks the last checkpoint (OSError: the "
                                     "network is down); it will be sent with the next one\n")
  assert not list(here.iterdir())


def test_steps_go_on_while_a_checkpoint_is_sent(url, tmp_path, monkeypatch, capsys):
  went_on = threading.Event()
  put = object_store.ObjectStore._put

  def put_late(self, *arguments) -> None:
    assert went_on.wait(60.0)
    put(self, *arguments)

  def go_on(step, number):
    if number == 9:
      went_on.set()

  monkeypatch.setattr(object_store.ObjectStore, "_put", put_late)
  count(url, "train.log_every = 1", before_call=go_on)
  assert steps_of(tmp_path / "store" / "run" / "checkpoints") == [5, 10]
  assert capsys.readouterr().err == ""


def test_an_end_that_cannot_be_sent_is_an_error_and_stays_here(url, here, tmp_path, monkeypatch):
  broken(monkeypatch, lambda: True)
  with pytest.raises(RunFailed) as failed:
    count(url)
  folder = next(here.glob("replicator-workdir-*/run"))
  assert str(failed.value).splitlines()[0] == (
      f"{url}: lacks the end of this run, which is in {folder}; continue there with "
      f"--workdir={folder}, or copy it to the URL")
  assert steps_of(folder / "checkpoints") == [5, 10]
  monkeypatch.undo()
  monkeypatch.setattr(tempfile, "tempdir", str(here))
  count(url)  # Another run removes only what is of no use.
  assert folder.exists()
  assert count(str(folder), "train.steps = 11").count.numpy() == 11


def test_the_end_of_a_failed_run_that_cannot_be_sent_is_named(url, here, monkeypatch, capsys):
  broken(monkeypatch, lambda: True)

  def fail(step, number):
    raise ZeroDivisionError

  with pytest.raises(ZeroDivisionError):
    count(url, before_call=fail)
  folder = next(here.glob("replicator-workdir-*/run"))
  assert f"which is in {folder}; continue there with --workdir=" in capsys.readouterr().err


def test_without_locks_nothing_that_may_live_is_removed(url, here, monkeypatch):
  def flock(file, operation):
    raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

  lives = here / "replicator-workdir-lives"
  lives.mkdir()
  monkeypatch.setattr(remote.fcntl, "flock", flock)
  count(url)
  assert list(here.iterdir()) == [lives]


def test_what_a_killed_run_has_left_here_is_removed(url, here):
  left, lives = here / "replicator-workdir-left", here / "replicator-workdir-lives"
  left.mkdir()
  lives.mkdir()
  with remote.locked(lives):
    count(url)
  assert list(here.iterdir()) == [lives]


def test_one_process_owns_a_url(url, tmp_path, capsys):
  owner = tmp_path / "store" / "run" / claim.FILE
  owner.parent.mkdir()
  owner.write_bytes(ELSEWHERE)
  with pytest.raises(UsageError, match=f"--workdir={url}: is in use by process 1 on another-machine"
                     r" since .*, last seen .*; if that process is gone, add --take_over"):
    count(url)
  claim.take_over(True)

  taken: list[int] = []  # The number of steps that were done.

  def take_over(step, number):
    if not taken and (owner.parent / "checkpoints/step-00000005/manifest.json").exists():
      atomic.write_whole(owner, ELSEWHERE)
      taken.append(number)

  with pytest.raises(RunFailed, match=f"{url}: was taken over by process 1 on another-machine"):
    count(url, "train.steps = 50", before_call=take_over)
  assert owner.read_bytes() == ELSEWHERE  # It is not touched.
  assert max(steps_of(owner.parent / "checkpoints")) <= taken[0] <= 20


def test_a_mistake_names_the_url(url):
  count(url)
  flags = lock.command.experiment
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(lock.command, "experiment", lambda: f"not-{flags()}")
    assert f"--workdir={url}: contains a run of the experiment" in refusal(count, url)


def test_workers_get_the_checkpoints_of_the_chief(url, tmp_path):
  count(url)
  store = tmp_path / "store" / "run"
  before = sorted(store.rglob("*"))
  with remote.mirrored(url, is_chief=False) as place:
    assert steps_of(place / "checkpoints") == [10] and not (place / "run.json").exists()
    places.refresh(place)
    assert steps_of(place / "checkpoints") == [5, 10]
    (place / "failures").mkdir()
    (place / "failures" / "batch-worker-1.npz").write_text("its batch")
  added = [store / "failures", store / "failures" / "batch-worker-1.npz"]
  assert sorted(store.rglob("*")) == sorted([*before, *added])  # Not even a lock.


def test_before_a_rollback_the_chief_sends_what_others_need(url, tmp_path):
  with remote.mirrored(url, is_chief=True) as chief:
    (chief / "run.json").write_text("{}")
    places.refresh(chief)
    assert (tmp_path / "store" / "run" / "run.json").read_text() == "{}"


def test_what_reads_a_workdir_takes_a_url(url, tmp_path, monkeypatch, capsys):
  train(tmp_path / "store" / "run", *SETTING, "train.eval_every = 5", step=TwoNetworks,
        inputs=Points())
  monkeypatch.chdir(tmp_path)
  assert compare.main([url, str(tmp_path / "store" / "run")]) == 0
  assert (tmp_path / "compare.html").exists()
  assert compare.main([url, "--output=s3://bucket/page.html"]) == 2
  assert "--output=s3://bucket/page.html: must be a local path" in capsys.readouterr().err
  train(tmp_path / "next", *SETTING, f"train.start_from = '{url}'", step=TwoNetworks,
        inputs=Points())
  assert reader.read_facts(tmp_path / "next")["start_from"]["run"] == url
  assert f"start from  {url}, step 10: " in capsys.readouterr().out


@pytest.mark.slow
def test_a_command_line_names_a_url(url, tmp_path):
  command = ["-m", "tests.programs.fragile", f"--workdir={url}", "--take_over",
             "--gin_param=train.steps = 4", "--gin_param=train.global_batch_size = 4"]
  done = forked(*command, TMPDIR=str(tmp_path))
  assert f"workdir     {url}\n" in done.stdout
  failed = forked(*command, "--gin_param=train.steps = 8", status=1, TMPDIR=str(tmp_path))
  assert "resumed at step 4" in failed.stdout
  assert f"its batch and numbers are in {url}/failures/step-00000006" in failed.stderr
  assert (tmp_path / "store" / "run" / "failures" / "step-00000006" / "batch.npz").exists()
  step = replicator.load(url, bindings=["train.global_batch_size = 4"])
  assert step.optimizer.keras_optimizer.iterations.numpy() == 4
  run = places.folder_of(url)
  again = rerun.make_command(run, rerun.read_facts(run), f"{url}-rerun")
  assert again[-2:] == [f"--gin_file={run}/config.gin", f"--workdir={url}-rerun"]
  assert rerun.main([url]) == 2  # Its command is not started unseen.
  refused = forked(*command[:2], "--workdir=s3:/bucket/run", status=2)
  assert "error: s3:/bucket/run: write s3://... as a string" in refused.stderr


def test_what_a_run_sets_aside_stays_in_the_store(url, tmp_path, capsys):
  count(url)
  store = tmp_path / "store" / "run"
  from_step.go_on_from(5)
  try:
    count(url, "train.global_batch_size = 4")
  finally:
    from_step.go_on_from(None)
  (left,) = (store / "set_aside").iterdir()
  assert f"is set aside in {url}/set_aside/{left.name}, a separate " in capsys.readouterr().out
  assert steps_of(store / "checkpoints") == [5, 10] and steps_of(left / "checkpoints") == [10]
  count(url, "train.steps = 15", "train.global_batch_size = 4")  # Another process removes nothing.
  assert atomic.is_good(left / "checkpoints" / "step-00000010")
  assert not (places.folder_of(url) / "set_aside").exists()
  assert steps_of(places.folder_of(f"{url}/set_aside/{left.name}", "all") / "checkpoints") == [10]
