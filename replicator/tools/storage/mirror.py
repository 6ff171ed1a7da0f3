"""The callback that brings the copy of a workdir at a URL up to date."""

import concurrent.futures
import contextlib
import pathlib
import sys

from replicator.errors import OneLineError, Preempted, RunFailed, UsageError
from replicator.tools.storage.object_store import ObjectStore, reason
from replicator.training.callbacks.callback import Callback
from replicator.training.run import Run
from replicator.training.workdir.claim import Claim


class Mirror(Callback):
  """Sends what has changed in a workdir to its URL, whenever a checkpoint is on the disk.

  On the chief, which owns the URL. A thread of its own sends; the run waits for it only before the
  next checkpoint, and at the end. Other workers get the checkpoints of the chief, and send what an
  error has left in their `folder`. The file `behind` is there while the URL lacks something.
  `remote.mirrored` installs it.
  """

  in_checks = False
  on_all_workers = True

  def __init__(self, store: ObjectStore, folder: pathlib.Path, behind: pathlib.Path,
               is_chief: bool):
    self._store, self._folder, self._behind = store, folder, behind
    self._claim = Claim(store, store.url) if is_chief else None
    self._is_owner = False
    self._thread = concurrent.futures.ThreadPoolExecutor(1, "mirror")
    self._sending: concurrent.futures.Future | None = None

  # ---- While a run trains -----------------------------------------------------------------------

  def begin(self, run: Run) -> None:
    """Has the run name the URL in place of the folder."""
    run.place = str(run.workdir).replace(str(self._folder), self._store.url)
    self.every = run.schedule.checkpoint_every

  def after_steps(self, run: Run) -> None:
    """Waits for the last checkpoint, before the next one is written, which may replace files.

    Raises a RunFailed if another process has taken the URL over.
    """
    self._wait()

  def saved(self, run: Run) -> None:
    """Sends a checkpoint; raises a RunFailed if another process has taken the URL over."""
    self._wait()
    if self._claim:
      self._sending = self._thread.submit(self._send)
    if run.step >= run.schedule.steps or run.why_stopped:
      self._wait()  # The run must not be called done if the URL is another process's.

  def refresh(self) -> None:
    """Sends the checkpoints of the chief now, or gets those that the chief has sent."""
    self._wait()
    if self._claim:
      self._send()
    else:
      self._store.pull(self._folder, "all", logs=False)

  # ---- Around the run ---------------------------------------------------------------------------

  def open(self) -> None:
    """Owns the URL, if this process is the chief, and gets what is there.

    Raises a UsageError if the store cannot be used, or another process owns the workdir.
    """
    if self._claim:
      try:
        self._claim.take()
      except OneLineError:
        raise
      except Exception as error:
        raise UsageError(f"{self._store.url}: cannot be written ({reason(error)})") from error
      self._is_owner = True
    self._store.pull(self._folder, "all" if self._claim else "newest", logs=bool(self._claim))

  def close(self, error: Exception | None = None) -> None:
    """Sends the rest; a line or a RunFailed says where the files are if that fails."""
    self._wait()
    if not self._claim:
      with contextlib.suppress(Exception):  # What the error left behind is of use, no more.
        self._store.add(self._folder, "failures/")
        self._store.add(self._folder, "traceback-")
    if not self._is_owner or self._send():
      return
    lacks = (f"{self._store.url}: lacks the end of this run, which is in {self._folder}; go on "
             f"there with --workdir={self._folder}, or copy it to the URL")
    if error is None or isinstance(error, Preempted):
      raise RunFailed(lacks) from error
    print(f"warning: {lacks}", file=sys.stderr, flush=True)

  def release(self) -> None:
    """Waits until nothing is sent any more, and lets the URL go."""
    self._thread.shutdown()
    if self._claim and self._is_owner:
      self._claim.release()

  def _wait(self) -> None:
    sending, self._sending = self._sending, None
    if sending:
      sending.result()

  def _send(self) -> bool:
    """Brings the URL up to date; a failure is one line, and False."""
    assert self._claim
    try:
      self._claim.confirm()
      try:
        self._store.push(self._folder)
      except FileNotFoundError:  # The run has removed one meanwhile.
        self._store.push(self._folder)
      self._behind.unlink(missing_ok=True)
      return True
    except OneLineError:  # It is another process's.
      self._is_owner = False
      raise
    except Exception as error:
      self._behind.touch()
      print(f"warning: {self._store.url}: lacks the last checkpoint ({reason(error)}); it is sent "
            "with the next one", file=sys.stderr, flush=True)
      return False
