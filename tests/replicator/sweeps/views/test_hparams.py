"""What TensorBoard's HParams plugin shows of a sweep."""

import math

import pytest

from replicator.sweeps.views import hparams


def test_tensorboard_shows_the_same(rows, tmp_path, page_file):
  import tensorflow as tf
  from tensorboard.backend.event_processing import data_provider, plugin_event_multiplexer
  from tensorboard.context import RequestContext
  from tensorboard.plugins import base_plugin
  from tensorboard.plugins.hparams import api_pb2, backend_context, list_session_groups
  for row in rows[:-1]:
    folder = tmp_path / "trials" / row.record.id
    hparams.write_trial(folder, row.record)
    with tf.summary.create_file_writer(str(folder)).as_default():  # As a run does.
      for step, value in row.series:
        tf.summary.scalar(page_file.metric, value, step)
  hparams.write_sweep(tmp_path, page_file, rows)
  multiplexer = plugin_event_multiplexer.EventMultiplexer(
    tensor_size_guidance={"scalars": 0, "hparams": 0})
  multiplexer.AddRunsFromDirectory(str(tmp_path))
  multiplexer.Reload()
  provider = data_provider.MultiplexerDataProvider(multiplexer, str(tmp_path))
  context = backend_context.Context(base_plugin.TBContext(data_provider=provider))
  request = api_pb2.ListSessionGroupsRequest(
    start_index=0, slice_size=100, allowed_statuses=[
      api_pb2.STATUS_SUCCESS, api_pb2.STATUS_FAILURE, api_pb2.STATUS_RUNNING])
  experiment = context.experiment_from_metadata(
    RequestContext(), "", False, context.hparams_metadata(RequestContext(), ""), [])
  assert {info.name for info in experiment.hparam_infos} == {"a.lr", "net", "train.seed"}
  request.col_params.add().metric.tag = page_file.metric
  groups = list_session_groups.Handler(RequestContext(), context, "", request).run().session_groups
  shown = {group.name: group for group in groups}
  assert set(shown) == {row.record.id for row in rows[:-1]}
  for row in rows[:-1]:
    group = shown[row.record.id]
    assert group.hparams["a.lr"].number_value == row.record.bindings["a.lr"]
    assert group.hparams["net"].string_value == row.record.bindings["net"]
    assert group.sessions[0].status == (api_pb2.STATUS_FAILURE if row.record.status == "failed"
                                        else api_pb2.STATUS_SUCCESS)
    if math.isfinite(row.last):
      assert group.metric_values[0].value == pytest.approx(row.last)
