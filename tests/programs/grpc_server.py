"""A server that answers as a process of TensorFlow does."""

import contextlib
from collections.abc import Iterator
from concurrent import futures

import grpc


@contextlib.contextmanager
def serving(port: int = 0) -> Iterator[int]:
  """A server of gRPC, as TensorFlow's is; its port."""
  server = grpc.server(futures.ThreadPoolExecutor(1))
  port = server.add_insecure_port(f"127.0.0.1:{port}")
  server.start()
  try:
    yield port
  finally:
    server.stop(None).wait()
