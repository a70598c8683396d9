"""The cost of traces and of the access log: CPU of one worker for a request, with and without, in the same rounds.

    python scripts/bench/traces.py              # about 4 minutes
    python scripts/bench/traces.py --rounds 5

Gateways with the same rules and other options, before the same canned engine. Spans go to a receiver that answers each
batch and reads none: what a request costs the worker, and the control process, does not depend on it.
"""

import os
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

# Started by its path, Python looks for modules in this folder first, where `http` is a benchmark.
sys.path[0] = str(Path(__file__).resolve().parent.parent)

from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer  # noqa: E402

import typer  # noqa: E402
from rich.progress import Progress  # noqa: E402

from bench import command  # noqa: E402
from bench.processes import Ports  # noqa: E402
from bench.variants import compare_variants, tell_variants  # noqa: E402

CASES = ("small", "unique")
VARIANTS = ("none", "traces 1 %", "traces 100 %", "log json", "log otel", "traces 1 %, log otel")


class _Collector(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        self.send_response(200)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Log nothing."""


def rules(name: str, ports: Ports) -> str:
    port = next(iter(ports.values()))
    engine = f"{{it: {{endpoints: ['http://127.0.0.1:{port}']}}}}"
    return f"version: 1\nengines: {engine}\nroutes: [{{name: all, engine: it}}]\n"


def main(
    rounds: command.Rounds = 3, seconds: command.Seconds = 2, results: command.ResultsFolder = command.RESULTS
) -> None:
    """Measure what traces and the access log add to a request's CPU time."""
    command.end_by_signal()
    # Unique heads have a trace context that is sampled: all would be traced
    os.environ["OTEL_TRACES_SAMPLER"] = "traceidratio"
    collector = ThreadingHTTPServer(("127.0.0.1", 0), _Collector)
    threading.Thread(target=collector.serve_forever, daemon=True).start()

    def options(name: str, folder: Path) -> Sequence[str]:
        found: list[str] = []
        if "traces" in name:
            share = "1%" if "1 %" in name else "100%"
            port = collector.server_address[1]
            found += ["--otlp-endpoint", f"http://127.0.0.1:{port}", "--trace-sample", share]
            found += ["--trace-rate", "100000"]
        if "log" in name:
            found += ["--access-log-file", str(folder / "access.log")]
            found += ["--access-log-format", "otel" if "otel" in name else "json"]
        return found

    with Progress(console=command.console) as progress:
        found = compare_variants(VARIANTS, rules, CASES, rounds, seconds, progress, options)
    collector.shutdown()
    tell_variants(found, VARIANTS, CASES, "options", "options", results / "traces.json")


if __name__ == "__main__":
    typer.run(main)
