"""python -m tests.support.canned_llm --port 0 --ready-file FILE [--v2]"""

import argparse
import asyncio
import contextlib
import json
import signal
from pathlib import Path

import uvloop

from tests.support.canned_llm import MODEL
from tests.support.canned_llm.engine import PATHS, Engine
from tests.support.canned_llm.server import Connection


async def serve(engine: Engine, port: int, ready_file: Path) -> None:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Connection(engine), "127.0.0.1", port, backlog=1024)
    stopped = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.set)
    aside = ready_file.with_suffix(".tmp")
    aside.write_text(json.dumps({"http": server.sockets[0].getsockname()[1]}))
    aside.rename(ready_file)
    await stopped.wait()
    server.close()


def main() -> None:
    parser = argparse.ArgumentParser(description="A language-model engine that counts, and breaks as it is told.")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--ready-file", type=Path, required=True)
    parser.add_argument("--v2", action="store_true", help="speak Triton's protocol")
    parser.add_argument("--models", default=MODEL, help="names it serves, with commas; any other gets 404")
    parser.add_argument("--dialects", default=",".join(PATHS), help="what it speaks, with commas")
    parser.add_argument("--prefill", choices=["always", "flagged", "never"], default="always")
    parser.add_argument("--api-key", default="")
    parser.add_argument("--interval-seconds", type=float, default=0.0, help="between tokens")
    parser.add_argument("--swap", action="append", default=[], metavar="WORD=OTHER", help="say another word instead")
    reply = parser.parse_args()
    engine = Engine(
        models=reply.models.split(","),
        dialects=reply.dialects.split(","),
        prefill=reply.prefill,
        api_key=reply.api_key,
        is_v2=reply.v2,
        interval_seconds=reply.interval_seconds,
        swaps=dict(swap.split("=", 1) for swap in reply.swap),
    )
    with contextlib.suppress(KeyboardInterrupt):
        uvloop.run(serve(engine, reply.port, reply.ready_file))


if __name__ == "__main__":
    main()
