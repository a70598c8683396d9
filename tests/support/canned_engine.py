"""A small V2 engine as a process of its own: it says who it is, and can be killed.

    python -m tests.support.canned_engine NAME

It prints its port. A request's `x-sleep` field makes it wait that many seconds before it answers.
"""

import json
import subprocess
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Self

REPOSITORY = Path(__file__).parents[2]


class CannedEngine:
    """The process, as a test holds it."""

    def __init__(self, name: str) -> None:
        command = [sys.executable, "-m", "tests.support.canned_engine", name]
        self.process = subprocess.Popen(command, cwd=REPOSITORY, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        self.url = f"http://127.0.0.1:{int(self.process.stdout.readline())}"

    def kill(self) -> None:
        """End as a crash would."""
        self.process.kill()
        self.process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        assert self.process.stdout is not None
        self.process.stdout.close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    name = ""

    def do_GET(self) -> None:
        self._answer({})

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("content-length", 0)))
        time.sleep(float(self.headers.get("x-sleep", 0)))
        self._answer({"served_by": self.name, "path": self.path})

    def _answer(self, told: dict[str, str]) -> None:
        body = json.dumps(told).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Nothing: the test's output is for the test."""


class _Server(ThreadingHTTPServer):
    request_queue_size = 256


if __name__ == "__main__":
    _Handler.name = sys.argv[1]
    server = _Server(("127.0.0.1", 0), _Handler)
    print(server.server_address[1], flush=True)
    server.serve_forever()
