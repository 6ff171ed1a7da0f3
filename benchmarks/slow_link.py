"""Two network namespaces of Linux, joined by a link with a given bandwidth and latency.

Needs root. All bytes between the two pass a proxy in this process.
"""

import asyncio
import contextlib
import pathlib
import socket
import subprocess
import threading
from collections.abc import Iterator

CHUNK = 2 ** 16
HOSTS = ("first", "second")
"""The names of the two namespaces, and of the host in each as the other sees it."""


class Direction:
  """One direction of the link, which all connections share.

  Args:
    bandwidth: bytes a second.
    latency: seconds from one end to the other.
  """

  def __init__(self, bandwidth: float, latency: float):
    self._bandwidth, self._latency, self._free = bandwidth, latency, 0.0

  async def carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Copies a stream until it ends."""
    loop, sent = asyncio.get_running_loop(), asyncio.Queue(maxsize=64)

    async def deliver() -> None:
      while (item := await sent.get()) is not None:
        at, chunk = item
        await asyncio.sleep(max(0.0, at - loop.time()))
        writer.write(chunk)
        await writer.drain()
      writer.close()

    delivery = asyncio.create_task(deliver())
    with contextlib.suppress(ConnectionError):
      while chunk := await reader.read(CHUNK):
        self._free = max(self._free, loop.time()) + len(chunk) / self._bandwidth
        await sent.put((self._free + self._latency, chunk))
        await asyncio.sleep(max(0.0, self._free - loop.time()))
    await sent.put(None)
    with contextlib.suppress(ConnectionError):
      await delivery


def run(*words: str) -> None:
  subprocess.run(words, check=True)


@contextlib.contextmanager
def slow_link(bandwidth: float, latency: float, port: int) -> Iterator[list[str]]:
  """Makes the namespaces and the link, for programs that listen on `port`; removes them again.

  Yields the addresses of the two, which are the same in both. Run a program in a namespace by
  `ip netns exec NAME PROGRAM`.
  """
  with contextlib.ExitStack() as stack:
    for number, name in enumerate(HOSTS):
      run("ip", "netns", "add", name)
      stack.callback(run, "ip", "netns", "delete", name)
      inside, outside = f"10.77.{number}.2", f"10.77.{number}.1"
      run("ip", "link", "add", f"to-{name}", "type", "veth", "peer", "name", "out", "netns", name)
      stack.callback(run, "ip", "link", "delete", f"to-{name}")  # Before the namespace.
      run("ip", "address", "add", f"{outside}/24", "dev", f"to-{name}")
      run("ip", "link", "set", f"to-{name}", "up")
      for words in (f"address add {inside}/24 dev out", "link set out up", "link set lo up"):
        run("ip", "-n", name, *words.split())
      # Each host is itself in its own namespace, and this proxy in the other.
      hosts = pathlib.Path("/etc/netns", name, "hosts")
      hosts.parent.mkdir(parents=True, exist_ok=True)
      stack.callback(hosts.unlink)
      hosts.write_text("127.0.0.1 localhost\n" + "".join(
          f"{inside if each == name else outside} {each}\n" for each in HOSTS))
    proxy = _Proxy(bandwidth, latency, port)
    stack.callback(proxy.stop)
    yield [f"{name}:{port}" for name in HOSTS]


class _Proxy:
  """Forwards connections in a thread of its own."""

  def __init__(self, bandwidth: float, latency: float, port: int):
    self._directions = [Direction(bandwidth, latency) for _ in HOSTS]
    self._port = port
    self._loop = asyncio.new_event_loop()
    self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
    self._thread.start()
    for number in range(len(HOSTS)):
      asyncio.run_coroutine_threadsafe(self._listen(number), self._loop).result()

  async def _listen(self, host: int) -> None:
    """Listens in place of the other host for connections that come from `host`."""
    async def forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
      try:
        there, back = await asyncio.open_connection(f"10.77.{1 - host}.2", self._port)
      except OSError:  # The other process does not listen yet.
        writer.close()
        return
      for stream in (writer, back):
        stream.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
      with contextlib.suppress(asyncio.CancelledError):  # The end of the proxy.
        await asyncio.gather(self._directions[host].carry(reader, back),
                             self._directions[1 - host].carry(there, writer))

    await asyncio.start_server(forward, f"10.77.{host}.1", self._port, limit=CHUNK)

  async def _end(self) -> None:
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
      task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)

  def stop(self) -> None:
    asyncio.run_coroutine_threadsafe(self._end(), self._loop).result()
    self._loop.call_soon_threadsafe(self._loop.stop)
    self._thread.join()
