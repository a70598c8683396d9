"""One proxy held for a profile: the commands that load it."""

import dataclasses
import json
import shlex
import sys

from bench.openai_cases import CASES, OURS, OpenAICase, right_answer
from bench.openai_load import OpenAILoad
from bench.openai_proxies import ENGINE
from bench.processes import SCRIPTS
from bench.programs import Running

# Long enough for a profile.
SECONDS = 15

ANYBODY = ("chat", "chat-long", "tokens")


def how_to_load(running: Running) -> list[str]:
    """Who works, and a command for each kind of load that it can bear."""
    port = running.ports[ENGINE]
    lines = [f"{running.name} listens on {port}" + (f", its worker is {running.worker.pid}" if running.worker else "")]
    lines += [
        f"load, {name}: {_command(case, port)}"
        for name, case in CASES.items()
        if name in ("chat", "chat-long", "tokens")
    ]
    if running.name == "ours":
        lines.append(f"load, translated: {_command(CASES['translated'], port)}")
    if running.worker:
        lines.append(f"profile: py-spy record --rate 500 --duration 10 --pid {running.worker.pid} -o profile.svg")
    return lines


def _asked(running: Running) -> tuple[str, ...]:
    return (*ANYBODY, "translated") if running.name == OURS else ANYBODY


def _command(case: OpenAICase, port: int) -> str:
    load = OpenAILoad(
        exchange=case.exchange,
        port=port,
        connections=case.connections or 32,
        seconds=SECONDS,
        groups={},
        right=None if case.is_stream else right_answer(port, case.exchange).decode("ascii"),
    )
    argv = [sys.executable, "-m", "bench.openai_load", json.dumps(dataclasses.asdict(load))]
    return f"cd {shlex.quote(str(SCRIPTS))} && {shlex.join(argv)}"
