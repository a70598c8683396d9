"""What choosing the right endpoint costs a request: the gateway without and with each part, in turn on one machine.

    python scripts/bench/availability.py              # about two minutes
    python scripts/bench/availability.py --quick      # a glance
    python scripts/bench/availability.py --only models,hedging --rounds 21 --seconds 1

The figure is CPU microseconds of the worker for one request: the median of the differences between a part and `none` in
the same round. All have two endpoints. `prefix` and `prefix, events` are the choice alone, in this process: a prompt of
4 KB that one of two endpoints has seen, beside `power_of_two`.
"""

import sys
from pathlib import Path

# Started by its path, Python looks for modules in this folder first, where some have the names of libraries.
sys.path[0] = str(Path(__file__).resolve().parent.parent)

import statistics  # noqa: E402
from time import process_time_ns  # noqa: E402
from typing import Annotated  # noqa: E402

import typer  # noqa: E402
from rich.progress import Progress  # noqa: E402
from rich.table import Table  # noqa: E402

from bench import command  # noqa: E402
from bench.processes import Ports  # noqa: E402
from bench.variants import compare_variants, tell_variants  # noqa: E402

# Of each part: keys of the engine, of the route, and of the third endpoint, where it has one.
_FIXED = "min: 100, initial: 100, max: 100"
PARTS: dict[str, tuple[str, str, str]] = {
    "none": ("models: {source: none}", "", ""),
    "models": ("", "", ""),
    "fallback": ("models: {source: none}", ", fallback: [spare]", ""),
    "levels": ("models: {source: none}", "", "priority: 1"),
    "overload": (f"models: {{source: none}}, overload: {{concurrency: {{{_FIXED}}}}}", "", ""),
    "overload, adaptive": ("models: {source: none}, overload: {}", "", ""),
    "hedging": ("models: {source: none}, hedging: {}", "", ""),
    "waiting": ("models: {source: none}, wait_for_endpoint: 60s", "", ""),
}
# The endpoints list different models, and both have the one that is requested.
_MODELS = ("simple,first", "simple,second", "simple")
MEASURED = ("small", "unique")
_CHOICES, _TIMES = 2000, 41


def rules_of(name: str, upstreams: Ports) -> str:
    engine, route, third = PARTS[name]
    url = "{{url: 'http://127.0.0.1:{}'{}}}"
    endpoints = [url.format(upstreams[f"upstream-{number}"], "") for number in (1, 2)]
    if third:
        endpoints.append(url.format(upstreams["upstream-3"], f", {third}"))
    keys = f"retry: {{idempotent: infer}}{', ' if engine else ''}{engine}"
    return f"""version: 1
engines:
  it: {{endpoints: [{", ".join(endpoints)}], {keys}}}
  spare: {{endpoints: [{url.format(upstreams["upstream-3"], "")}]}}
routes:
  - {{name: other, match: {{model: "llama-*"}}, engine: spare}}
  - {{name: simple, match: {{model: simple}}, engine: it{route}}}
"""


def choices() -> dict[str, float]:
    """CPU microseconds of one choice, by policy; medians."""
    from gateway.config.engine_specs import Balance, EndpointSpec, EngineSpec, KvEventsSpec, PrefixSpec
    from gateway.upstream.engine import Engine

    urls = EndpointSpec("http://127.0.0.1:1"), EndpointSpec("http://127.0.0.1:2")
    engines = {
        "power_of_two": Engine(EngineSpec("it", urls)),
        "prefix": Engine(EngineSpec("it", urls, balance=Balance.PREFIX)),
        "prefix, events": Engine(
            EngineSpec("it", urls, balance=Balance.PREFIX, prefix=PrefixSpec(events=KvEventsSpec("-")))
        ),
    }
    body = b'{"messages":' + b"word " * 820 + b"}"
    prompt = memoryview(body)[12:]
    found: dict[str, list[float]] = {name: [] for name in engines}
    for _ in range(_TIMES):
        for name, engine in engines.items():
            started = process_time_ns()
            for _ in range(_CHOICES):
                engine.choose(None, 1.0, (), prompt)
            found[name].append((process_time_ns() - started) / _CHOICES / 1000)
    return {name: statistics.median(times) for name, times in found.items()}


def main(
    only: Annotated[str, command.name_option("PARTS", PARTS)] = "",
    rounds: command.Rounds = 9,
    seconds: command.Seconds = 1,
    quick: command.Quick = False,
    results: command.ResultsFolder = command.RESULTS,
) -> None:
    """Measure what the parts that choose an endpoint cost a request."""
    command.end_by_signal()
    names = [name for name in PARTS if not only or name == "none" or name in only.split(",")]
    with Progress(console=command.console) as progress:
        rounds, seconds = (1, 1) if quick else (rounds, seconds)
        found = compare_variants(names, rules_of, MEASURED, rounds, seconds, progress, _MODELS)
    tell_variants(found, names, MEASURED, "part", "part", results / "availability.json")
    table = Table("choice among two endpoints", "µs")
    for name, each in choices().items():
        table.add_row(name, f"{each:.2f}")
    command.console.print(table)


if __name__ == "__main__":
    typer.run(main)
