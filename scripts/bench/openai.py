"""The benchmark of language models: direct, Envoy, vllm-router, sglang-router, LiteLLM and Pointsman, one after another
in short rounds, on this machine only.

    python scripts/bench/openai.py --install    # first fetches the peers that pip has, into environments of their own
    python scripts/bench/openai.py              # everything that is installed, about six minutes
    python scripts/bench/openai.py --quick      # a glance, under three minutes
    python scripts/bench/openai.py --only chat,tokens --proxies ours,envoy --rounds 5

README.md beside this file describes the measurements and how to read them.
"""

import contextlib
import sys
from functools import partial
from pathlib import Path
from typing import Annotated

# Started by its path, Python looks for modules in this folder first, where `openai` is this file and not the library.
sys.path[0] = str(Path(__file__).resolve().parent.parent)

import typer  # noqa: E402

from bench import command, environment  # noqa: E402
from bench.openai_cases import CASES  # noqa: E402
from bench.openai_goals import verdicts  # noqa: E402
from bench.openai_proxies import PROXIES, install  # noqa: E402
from bench.openai_run import carry_out, held, how_to_load  # noqa: E402
from bench.processes import BenchError  # noqa: E402
from bench.wrk import wrk_version  # noqa: E402

PANELS = (
    ("mixed", "cpu_us", "mixed: CPU µs/request"),
    ("rate-60", "p99_us", "mixed at 60 % of Envoy's requests/s: p99 µs"),
    ("chat", "cpu_us", "chat: CPU µs/request"),
    ("chat", "units_per_second", "chat: requests/s"),
    ("chat-unique", "cpu_us", "unique heads: CPU µs/request"),
    ("chat-rename", "cpu_us", "renamed: CPU µs/request"),
    ("chat-long", "cpu_us", "220 KB prompt: CPU µs/request"),
    ("tokens", "cpu_us", "streams: CPU µs/token"),
    ("translated", "cpu_us", "translated streams: CPU µs/token"),
    ("latency", "p50_us", "one connection: p50 µs"),
)


def main(
    only: Annotated[str, command.case_option({name: case.title for name, case in CASES.items()})] = "",
    proxies: Annotated[str, command.name_option("PROXIES", PROXIES)] = "",
    rounds: command.Rounds = 3,
    seconds: command.Seconds = 2,
    connections: command.Connections = 32,
    quick: command.Quick = False,
    wrk: command.Wrk = True,
    pin: command.Pin = True,
    install_peers: Annotated[
        bool, typer.Option("--install", help="First install the peers that pip offers: .bench-routers, .bench-litellm.")
    ] = False,
    hold: command.Hold = "",
    results: command.ResultsFolder = command.RESULTS,
    json: command.JsonFile = None,
) -> None:
    """Measure proxies of language models before a canned engine: direct, Envoy, vllm-router, sglang-router, LiteLLM and
    Pointsman, one worker each.

    The main figure is CPU microseconds of the proxy for one request or token: unlike requests/s it hardly depends on
    what else this machine does. All traffic stays on 127.0.0.1. Every answer is checked; a wrong one ends the run with
    status 1. Missed goals are shown, and do not change the exit status.
    """
    if install_peers:
        try:
            install()
        except BenchError as error:
            command.console.print(f"[yellow]{error}[/]")
    if hold:
        command.end_by_signal()
        with contextlib.suppress(KeyboardInterrupt), held(command.installed(hold, PROXIES)[0], pin) as running:
            command.hold(how_to_load(running))
        return
    names = command.installed(proxies, PROXIES)
    cases = command.chosen(only, CASES, "case", default=list(CASES))
    rounds, seconds = (1, 1) if quick else (rounds, seconds)
    plan = command.Plan(names, cases, rounds, seconds, pin, connections, wrk)
    options = {"rounds": rounds, "seconds": seconds, "connections": connections, "pin": pin, "wrk": wrk}
    machine = environment.describe({name: PROXIES[name].find() for name in names}, [wrk_version()], options)
    command.carry_out("openai", partial(carry_out, plan), CASES.values(), verdicts, PANELS, machine, results, json)


if __name__ == "__main__":
    typer.run(main)
