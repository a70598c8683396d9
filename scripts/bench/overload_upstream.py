"""An engine of known capacity: so many requests at a time, each of which takes about so long; others wait in order.

    python -m bench.overload_upstream PORT SERVERS SECONDS [STALLS STALL_SECONDS]

A share STALLS of the requests takes STALL_SECONDS more. It answers every POST with a short JSON document, and every GET
at once.
"""

import asyncio
import random
import sys

_MODELS = b'{"object":"list","data":[{"id":"m","object":"model"}]}'
_ANSWER = (
    b'{"id":"1","object":"chat.completion","model":"m","choices":[{"index":0,"finish_reason":"stop","message":'
    b'{"role":"assistant","content":"yes"}}],"usage":{"prompt_tokens":1,"completion_tokens":1,"total_tokens":2}}'
)


def _reply(body: bytes) -> bytes:
    return b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body)


class UpstreamEngine:
    def __init__(self, servers: int, seconds: float, stalls: float, stall_seconds: float) -> None:
        self._free = asyncio.Semaphore(servers)
        self._seconds = seconds
        self._stalls, self._stall_seconds = stalls, stall_seconds

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).lower()
                if head.startswith(b"post"):
                    length = int(head.partition(b"content-length:")[2].partition(b"\r\n")[0])
                    await reader.readexactly(length)
                    async with self._free:
                        stall = self._stall_seconds if random.random() < self._stalls else 0.0
                        await asyncio.sleep(self._seconds * random.uniform(0.75, 1.25) + stall)
                    writer.write(_reply(_ANSWER))
                else:
                    writer.write(_reply(_MODELS))
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()


async def main(port: int, servers: int, seconds: float, stalls: float = 0.0, stall_seconds: float = 0.0) -> None:
    engine = UpstreamEngine(servers, seconds, stalls, stall_seconds)
    server = await asyncio.start_server(engine.serve, "127.0.0.1", port, backlog=4096)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), int(sys.argv[2]), *map(float, sys.argv[3:])))
