"""The gRPC benchmark: direct, Envoy, grpcio.aio and Pointsman, one after another in short rounds, on this machine only.

    python scripts/bench/grpc.py              # everything that is installed, about ten minutes
    python scripts/bench/grpc.py --quick      # a glance, under a minute
    python scripts/bench/grpc.py --only unary,stream --proxies ours,envoy --rounds 5

README.md beside this file describes the measurements and how to read them.
"""

import contextlib
import shlex
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import Annotated

# Started by its path, Python looks for modules in this folder first, where `grpc` is this file and not the library.
sys.path[0] = str(Path(__file__).resolve().parent.parent)

import typer  # noqa: E402

from bench import command, environment  # noqa: E402
from bench.grpc_cases import CASES  # noqa: E402
from bench.grpc_goals import verdicts  # noqa: E402
from bench.grpc_h2load import command_line, h2load_version  # noqa: E402
from bench.grpc_messages import GrpcLoad  # noqa: E402
from bench.grpc_proxies import PROXIES  # noqa: E402
from bench.grpc_run import carry_out, held  # noqa: E402

# Long enough for a profile.
HOLD_SECONDS = 15

PANELS = (
    ("mixed", "cpu_us", "mixed: CPU µs/call"),
    ("mixed-grpcio", "cpu_us", "mixed, grpcio client: CPU µs/call"),
    ("unary", "cpu_us", "small ModelInfer: CPU µs/call"),
    ("unary", "units_per_second", "small ModelInfer: calls/s"),
    ("unary-triton", "cpu_us", "real Triton: CPU µs/call"),
    ("unique", "cpu_us", "every call unique: CPU µs/call"),
    ("churn", "cpu_us", "header tables change: CPU µs/call"),
    ("tensor", "megabytes_per_second", "600 KB tensors: MB/s"),
    ("stream", "cpu_us", "streams: CPU µs/message"),
    ("latency", "p50_us", "one call at a time: p50 µs"),
    ("grpcio", "cpu_us", "grpcio client: CPU µs/call"),
)


def main(
    only: Annotated[str, command.case_option({name: case.title for name, case in CASES.items()})] = "",
    proxies: Annotated[str, command.name_option("PROXIES", PROXIES)] = "",
    rounds: command.Rounds = 3,
    seconds: command.Seconds = 2,
    quick: command.Quick = False,
    pin: command.Pin = True,
    hold: command.Hold = "",
    results: command.ResultsFolder = command.RESULTS,
    json: command.JsonFile = None,
) -> None:
    """Measure gRPC proxies before a canned engine and a real Triton: direct, Envoy, grpcio.aio and Pointsman, one
    worker each.

    The main figure is CPU microseconds of the proxy for one call or message: unlike calls/s it hardly depends on what
    else this machine does. All traffic stays on 127.0.0.1. Every reply is checked; a wrong reply is reported as a
    failure of its proxy in that case, and the run continues. The exit status is 1 after a failure; missed goals are
    shown, and do not change the exit status.

    Most load comes from h2load (apt install nghttp2-client).
    """
    if hold:
        _hold(command.installed(hold, PROXIES)[0], pin)
        return
    names = command.installed(proxies, PROXIES)
    cases = command.chosen(only, CASES, "case", default=list(CASES))
    rounds, seconds = (1, 1) if quick else (rounds, seconds)
    plan = command.Plan(names, cases, rounds, seconds, pin)
    options = {"rounds": rounds, "seconds": seconds, "pin": pin}
    machine = environment.describe({name: PROXIES[name].find() for name in names}, [h2load_version()], options)
    command.carry_out("grpc", partial(carry_out, plan), CASES.values(), verdicts, PANELS, machine, results, json)


def _hold(proxy: str, pin: bool) -> None:
    """Keep one proxy running until Ctrl-C."""
    command.end_by_signal()
    with contextlib.suppress(KeyboardInterrupt), held(proxy, pin) as running, tempfile.TemporaryDirectory() as folder:
        case = CASES["unary"]
        load = GrpcLoad(
            exchange=case.exchange,
            reply_bytes=0,
            port=running.ports[case.upstream],
            connections=case.connections,
            calls=case.calls,
            seconds=0,
            groups={},
        )
        command.hold(
            [
                f"{proxy} listens on {load.port}" + (f", its worker is {running.worker.pid}" if running.worker else ""),
                f"load: {shlex.join(command_line(load, Path(folder) / 'request', HOLD_SECONDS))}",
                *command.profile_line(running.worker),
            ]
        )


if __name__ == "__main__":
    typer.run(main)
