"""A slow network: passes bytes on between two addresses, each way after a delay.

  python -m tests.programs.delaying_proxy HOST:PORT HOST:PORT SECONDS

It listens at the first address and connects to the second.
"""

import asyncio
import contextlib
import sys


async def pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, delay: float) -> None:
  """Passes on what comes, in order, each part `delay` seconds after it came."""
  loop = asyncio.get_running_loop()
  parts: asyncio.Queue = asyncio.Queue()

  async def send() -> None:
    while (item := await parts.get())[1]:
      await asyncio.sleep(item[0] - loop.time())
      writer.write(item[1])
    writer.close()

  sending = asyncio.create_task(send())
  with contextlib.suppress(ConnectionError):
    while part := await reader.read(1 << 16):
      parts.put_nowait((loop.time() + delay, part))
  parts.put_nowait((0.0, b""))
  await sending


async def serve(at: str, to: str, delay: float) -> None:
  """Serves every connection until this process ends."""

  async def connect(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
      there, back = await asyncio.open_connection(*to.split(":"))
    except OSError:  # Nobody listens there yet.
      writer.close()
      return
    await asyncio.gather(pass_on(reader, back, delay), pass_on(there, writer, delay))

  async with await asyncio.start_server(connect, *at.split(":")) as server:
    await server.serve_forever()


if __name__ == "__main__":
  asyncio.run(serve(sys.argv[1], sys.argv[2], float(sys.argv[3])))
