"""The benchmark of language models: direct, Envoy, vllm-router, sglang-router, LiteLLM and ours, one after another in
short rounds, on this machine only.

    python scripts/bench/openai.py --install    # first fetches the peers that pip has, into environments of their own
    python scripts/bench/openai.py              # everything that is installed, about six minutes
    python scripts/bench/openai.py --quick      # a glance, under three minutes
    python scripts/bench/openai.py --only chat,tokens --proxies ours,envoy --rounds 5

README.md beside this file says what is measured and how to read it.
"""

import contextlib
import signal
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
from bench.openai_hold import how_to_load  # noqa: E402
from bench.openai_proxies import PROXIES, install  # noqa: E402
from bench.openai_run import Plan, carry_out, held  # noqa: E402
from bench.processes import BenchError, raise_file_limit  # noqa: E402
from bench.wrk import wrk_version  # noqa: E402

PANELS = (
    ("chat", "cpu_us", "chat: CPU µs/request"),
    ("chat", "units_per_second", "chat: requests/s"),
    ("chat-unique", "cpu_us", "unique heads: CPU µs/request"),
    ("chat-rename", "cpu_us", "renamed: CPU µs/request"),
    ("chat-long", "cpu_us", "220 KB prompt: CPU µs/request"),
    ("tokens", "cpu_us", "streams: CPU µs/token"),
    ("translated", "cpu_us", "translated streams: CPU µs/token"),
    ("latency", "p50_us", "one connection: p50 µs"),
)

CASE_HELP = "; ".join(f"{case.name} ({case.title})" for case in CASES.values())


def main(
    only: Annotated[str, typer.Option(metavar="CASES", help=f"Separated by commas, of: {CASE_HELP}.")] = "",
    proxies: Annotated[
        str, typer.Option(metavar="PROXIES", help=f"Separated by commas, of: {', '.join(PROXIES)}.")
    ] = "",
    rounds: Annotated[int, typer.Option(min=1, max=50, help="Rounds of every case; medians are shown.")] = 3,
    seconds: Annotated[int, typer.Option(min=1, max=60, help="Length of one round of one proxy.")] = 2,
    connections: Annotated[int, typer.Option(min=1, max=2_000, help="Connections of the short chats.")] = 32,
    quick: Annotated[bool, typer.Option("--quick", help="One round of one second: a glance, not a figure.")] = False,
    wrk: Annotated[bool, typer.Option(help="Let wrk make the load of whole answers where it is installed.")] = True,
    pin: Annotated[bool, typer.Option(help="Give the proxies one core and load and engine the others (Linux).")] = True,
    install_peers: Annotated[
        bool, typer.Option("--install", help="First install the peers that pip has: .bench-routers, .bench-litellm.")
    ] = False,
    hold: Annotated[
        str, typer.Option(metavar="PROXY", help="Measure nothing: start this proxy and say how to load and profile it.")
    ] = "",
    results: Annotated[
        Path, typer.Option(metavar="FOLDER", help="Where openai.json and openai.png go.")
    ] = command.RESULTS,
) -> None:
    """Measure proxies of language models before a canned engine: direct, Envoy, vllm-router, sglang-router, LiteLLM
    and Pointsman, one worker each.

    The main figure is CPU microseconds of the proxy for one request or token: unlike requests/s it hardly depends on
    what else this machine does. All traffic stays on 127.0.0.1. Every answer is checked; a wrong one ends the run with
    status 1. Goals that are missed are shown, and do not change the exit status.
    """
    if install_peers:
        try:
            install()
        except BenchError as error:
            command.console.print(f"[yellow]{error}[/]")
    if hold:
        _hold(command.installed(hold, PROXIES)[0], pin)
        return
    raise_file_limit()
    names = command.installed(proxies, PROXIES)
    plan = Plan(
        proxies=names,
        cases=command.chosen(only, list(CASES), "case") if only else list(CASES),
        rounds=1 if quick else rounds,
        seconds=1 if quick else seconds,
        connections=connections,
        use_wrk=wrk,
        pin=pin,
    )
    options = {"rounds": plan.rounds, "seconds": plan.seconds, "connections": connections, "pin": pin, "wrk": wrk}
    machine = environment.describe({name: PROXIES[name].find() for name in names}, [wrk_version()], options)
    command.carry_out("openai", partial(carry_out, plan), CASES.values(), verdicts, PANELS, machine, results)


def _hold(proxy: str, pin: bool) -> None:
    """Keep one proxy running until Ctrl-C."""
    command.end_by_signal()
    with contextlib.suppress(KeyboardInterrupt), held(proxy, pin) as running:
        for line in how_to_load(running):
            print(line)
        print("Ctrl-C ends it", flush=True)
        signal.pause()


if __name__ == "__main__":
    typer.run(main)
