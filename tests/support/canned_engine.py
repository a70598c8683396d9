"""A small V2 engine as a child process: it identifies itself in its answers, and can be killed.

    python -m tests.support.canned_engine NAME

It prints its port. A request's `x-sleep` header delays its answer by this many seconds; PUT /canned with
{"status", "seconds"} sets the status and the delay of all further inferences.
"""

import json
import subprocess
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Self
from urllib.request import Request, urlopen

REPOSITORY = Path(__file__).parents[2]


class CannedEngine:
    """The process, for use in a test."""

    def __init__(self, name: str) -> None:
        command = [sys.executable, "-m", "tests.support.canned_engine", name]
        self.process = subprocess.Popen(command, cwd=REPOSITORY, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        self.url = f"http://127.0.0.1:{int(self.process.stdout.readline())}"

    def turn(self, status: int = 200, seconds: float = 0.0) -> None:
        """Set the status and the delay of all further inferences."""
        requested = json.dumps({"status": status, "seconds": seconds}).encode()
        with urlopen(Request(f"{self.url}/canned", requested, method="PUT"), timeout=120) as answer:
            assert answer.status == 200

    def kill(self) -> None:
        """Kill the process, as in a crash."""
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
    wbufsize = -1  # a reply is one write, so that one who kills the process cuts none in two
    name = ""
    status = 200
    seconds = 0.0

    def do_GET(self) -> None:
        self._answer({})

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("content-length", 0)))
        time.sleep(float(self.headers.get("x-sleep", self.seconds)))
        self._answer({"served_by": self.name, "path": self.path, "outputs": []}, self.status)

    def do_PUT(self) -> None:
        requested = json.loads(self.rfile.read(int(self.headers.get("content-length", 0))))
        _Handler.status, _Handler.seconds = requested["status"], requested["seconds"]
        self._answer({})

    def _answer(self, reply: dict[str, Any], status: int = 200) -> None:
        body = json.dumps(reply).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Log nothing."""


class _Server(ThreadingHTTPServer):
    request_queue_size = 256


if __name__ == "__main__":
    _Handler.name = sys.argv[1]
    server = _Server(("127.0.0.1", 0), _Handler)
    print(server.server_address[1], flush=True)
    server.serve_forever()
