"""The callback that keeps the copy of a workdir at a URL up to date."""

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
  """Callback that sends changes in a workdir to its URL after each checkpoint is saved.

  The chief owns the URL and sends in a separate thread; the run waits for it only before the next
  checkpoint, and at the end. Other workers get the chief's checkpoints, and send what an error
  left in their `folder`. The file `behind` exists while the URL is out of date. `remote.mirrored`
  installs this callback.
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
    """Makes the run show the URL in place of the folder."""
    run.place = str(run.workdir).replace(str(self._folder), self._store.url)
    self.every = run.schedule.checkpoint_every

  def after_steps(self, run: Run) -> None:
    """Waits for the last checkpoint to be sent, since writing the next one may replace files.

    Raises a RunFailed if another process has taken over the URL.
    """
    self._wait()

  def saved(self, run: Run) -> None:
    """Sends a checkpoint; raises a RunFailed if another process has taken over the URL."""
    self._wait()
    if self._claim:
      self._sending = self._thread.submit(self._send)
    if run.step >= run.schedule.steps or run.why_stopped:
      self._wait()  # The run must not count as done if another process owns the URL.

  def refresh(self) -> None:
    """Sends the checkpoints now, on the chief; gets them, on other workers."""
    self._wait()
    if self._claim:
      self._send()
    else:
      self._store.pull(self._folder, "all", logs=False)

  # ---- Around the run ---------------------------------------------------------------------------

  def open(self) -> None:
    """Takes ownership of the URL, on the chief, and gets its files.

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
    """Sends the rest; if that fails, a warning or a RunFailed says where the files are."""
    self._wait()
    if not self._claim:
      with contextlib.suppress(Exception):  # Useful, but not essential.
        self._store.add(self._folder, "failures/")
        self._store.add(self._folder, "traceback-")
    if not self._is_owner or self._send():
      return
    lacks = (f"{self._store.url}: lacks the end of this run, which is in {self._folder}; "
             f"continue there with --workdir={self._folder}, or copy it to the URL")
    if error is None or isinstance(error, Preempted):
      raise RunFailed(lacks) from error
    print(f"warning: {lacks}", file=sys.stderr, flush=True)

  def release(self) -> None:
    """Waits until everything is sent, and releases the URL."""
    self._thread.shutdown()
    if self._claim and self._is_owner:
      self._claim.release()

  def _wait(self) -> None:
    sending, self._sending = self._sending, None
    if sending:
      sending.result()

  def _send(self) -> bool:
    """Updates the URL; on failure, prints a warning and returns False."""
    assert self._claim
    try:
      self._claim.confirm()
      try:
        self._store.push(self._folder)
      except FileNotFoundError:  # The run has just removed one.
        self._store.push(self._folder)
      self._behind.unlink(missing_ok=True)
      return True
    except OneLineError:  # Another process owns the URL.
      self._is_owner = False
      raise
    except Exception as error:
      self._behind.touch()
      print(f"warning: {self._store.url}: lacks the last checkpoint ({reason(error)}); it will "
            "be sent with the next one", file=sys.stderr, flush=True)
      return False
