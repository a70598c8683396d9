"""An engine at every address of this machine: it answers each request with the same reply."""

import asyncio
import sys
from typing import cast

import uvloop

from gateway.net import descriptors

_REPLY = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}"


class Answers(asyncio.Protocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._transport.write(_REPLY)


async def main(port: int) -> None:
    descriptors.raise_limit()
    server = await asyncio.get_running_loop().create_server(
        Answers, "0.0.0.0", port, backlog=4096, reuse_port=sys.platform == "linux"
    )
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(main(int(sys.argv[1])))
