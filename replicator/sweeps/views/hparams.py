"""Events for TensorBoard's HParams plugin, written without TensorFlow.

The events of a trial hold its bindings; those of the sweep name the metrics to show.
"""

import io
import pathlib
import time
from collections.abc import Sequence
from typing import Any

from replicator.atomic import write_whole
from replicator.sweeps import space
from replicator.sweeps.results import TrialRow
from replicator.sweeps.sweep_file import SweepFile
from replicator.sweeps.trials import DONE, FAILED, PRUNED, Record
from replicator.workdir.reader import tensorboard_tag

# Sorts before a run's own events: TensorBoard reads the files of a folder in order.
_FILE = "events.out.tfevents.0000000000.hparams"


def write_trial(folder: pathlib.Path, record: Record) -> None:
  """Writes the bindings of a trial, and how it ended if it has."""
  # `hparams.api` would load TensorFlow.
  from tensorboard.plugins.hparams import api_pb2, summary_v2
  bindings = {name: _plain(value) for name, value in record.bindings.items()}
  summaries = [summary_v2.hparams_pb(bindings, trial_id=record.id,
                                     start_time_secs=folder.stat().st_mtime)]
  status = {DONE: api_pb2.STATUS_SUCCESS, PRUNED: api_pb2.STATUS_SUCCESS,
            FAILED: api_pb2.STATUS_FAILURE}.get(record.status)
  if status is not None:
    summaries.append(_end(status))
  _write(folder, summaries)


def _end(status: int) -> Any:
  from tensorboard.compat.proto.summary_pb2 import Summary
  from tensorboard.plugins.hparams import metadata, plugin_data_pb2
  data = plugin_data_pb2.HParamsPluginData(session_end_info=plugin_data_pb2.SessionEndInfo(
    status=status, end_time_secs=time.time()))
  summary = Summary()
  summary.value.add(tag=metadata.SESSION_END_INFO_TAG, tensor=metadata.NULL_TENSOR,
                    metadata=metadata.create_summary_metadata(data))
  return summary


def write_sweep(folder: pathlib.Path, file: SweepFile, rows: Sequence[TrialRow]) -> None:
  """Writes the names of the trials' bindings and of their metric."""
  from tensorboard.plugins.hparams import summary_v2
  parameters = []
  for name in file.names():
    values = [row.record.bindings[name] for row in rows
              if row.is_current and name in row.record.bindings]
    if values:
      parameters.append(summary_v2.HParam(name, domain=_domain(values)))
  metric = summary_v2.Metric(tensorboard_tag(file.metric))
  _write(folder, [summary_v2.hparams_config_pb(parameters, [metric])])


def _domain(values: Sequence) -> object:
  from tensorboard.plugins.hparams import summary_v2
  if all(map(space.is_number, values)):
    return summary_v2.RealInterval(float(min(values)), float(max(values)))
  if set(map(type, values)) == {bool}:
    return summary_v2.Discrete(sorted(set(values)))
  return summary_v2.Discrete(sorted({str(_plain(value)) for value in values}))


def _plain(value: Any) -> bool | int | float | str:
  return value if isinstance(value, bool | int | float | str) else space.text_of(value)


def _write(folder: pathlib.Path, summaries: Sequence) -> None:
  from tensorboard.compat.proto.event_pb2 import Event
  from tensorboard.summary.writer.record_writer import RecordWriter
  content = io.BytesIO()
  writer = RecordWriter(content)
  now = time.time()
  writer.write(Event(wall_time=now, file_version="brain.Event:2").SerializeToString())
  for summary in summaries:
    writer.write(Event(wall_time=now, step=0, summary=summary).SerializeToString())
  write_whole(folder / _FILE, content.getvalue())
