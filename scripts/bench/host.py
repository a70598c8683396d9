"""The engine host's benchmark: Pointsman, a real Triton and MLServer with the same models, in turns, on this machine
only.

    python scripts/bench/host.py              # everything that is installed, about three minutes
    python scripts/bench/host.py --quick      # a glance, about a minute
    python scripts/bench/host.py --only grpc-64,rest-64 --rounds 5

CPU microseconds of a server's whole process tree for one request hardly depend on what else the machine does;
requests/s and p99 do: a server of many threads gets more of a busy machine than one of few. Read those on a quiet one.
"""

import sys
from functools import partial
from pathlib import Path
from typing import Annotated

# Started by its path, Python looks for modules in this folder first, where some have names of libraries.
sys.path[0] = str(Path(__file__).resolve().parent.parent)
sys.path.append(str(Path(__file__).resolve().parents[2]))

import typer  # noqa: E402

from bench import command, environment, host_report  # noqa: E402
from bench.grpc_h2load import h2load_version  # noqa: E402
from bench.host_cases import CASES  # noqa: E402
from bench.host_run import carry_out  # noqa: E402
from bench.host_servers import SERVERS  # noqa: E402


def main(
    only: Annotated[str, command.case_option({name: case.title for name, case in CASES.items()})] = "",
    servers: Annotated[str, command.name_option("SERVERS", SERVERS)] = "",
    rounds: command.Rounds = 3,
    seconds: command.Seconds = 2,
    quick: command.Quick = False,
    pin: command.Pin = False,
    results: command.ResultsFolder = command.RESULTS,
    json: command.JsonFile = None,
) -> None:
    """Measure engine servers: a real Triton, MLServer and Pointsman's host.

    All serve the same int32 adder as a Python model; a network in ONNX and in TorchScript shows the gain of dynamic
    batching, and a tensor of 600 KB the cost of shared memory. All traffic stays on 127.0.0.1, and every answer is
    checked. Missed goals are shown, and do not change the exit status; it is 1 if a server has failed.
    """
    versions = command.present(servers, SERVERS, "server", lambda server: server.why())
    cases = command.chosen(only, CASES, "case", default=list(CASES))
    rounds, seconds = (1, 1) if quick else (rounds, seconds)
    plan = command.Plan(list(versions), cases, rounds, seconds, pin)
    machine = environment.describe(versions, [h2load_version()], {"rounds": rounds, "seconds": seconds, "pin": pin})
    command.carry_out(
        "host",
        partial(carry_out, plan),
        [CASES[name] for name in cases],
        host_report.verdicts,
        (),
        machine,
        results,
        json,
        show=host_report.show,
    )


if __name__ == "__main__":
    typer.run(main)
