"""What becomes of requests at three times the capacity of an engine: goodput, latency of each class, memory, recovery.

    python scripts/bench/overload.py                 # all proxies, about four minutes
    python scripts/bench/overload.py --only ours     # this one, or else those whose names contain it
    python scripts/bench/overload.py --engine paged --only ours      # a real engine; or triton

The small engine and the Triton answer eight requests at a time in 100 ms each; the paged engine is that of `pointsman
llm`, with a model of random weights, and generates eight texts at a time. Load is an open loop of three classes: a
fifth of the capacity, three times the capacity, and a half again. Clients wait for 5 s. Goodput is the share of the
capacity that is answered 200; the capacity is the larger of two measurements, before the run and after it. Recovery is
the time from the fall of the load to the last request that fails or takes twice the unloaded p99. Writes
results/overload-ENGINE.json and overload-ENGINE.png.
"""

import asyncio
import json
import os
import sys
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

sys.path[0] = str(Path(__file__).resolve().parent.parent)

import typer  # noqa: E402
from matplotlib.backends.backend_agg import FigureCanvasAgg  # noqa: E402
from matplotlib.figure import Figure  # noqa: E402
from rich.console import Console  # noqa: E402
from rich.table import Table  # noqa: E402

from bench import configs  # noqa: E402
from bench.openai_proxies import ENGINE, PROXIES, Environment  # noqa: E402
from bench.overload_engines import ENGINES, OverloadEngine  # noqa: E402
from bench.overload_load import CLASSES, OpenLoop, Reply, capacity  # noqa: E402
from bench.processes import Children, free_port, raise_file_limit  # noqa: E402
from bench.programs import Running, Site, start_envoy, start_pointsman  # noqa: E402

PATIENCE = 5.0
UNLOADED, WARMUP, LOADED, AFTER = 6.0, 8.0, 12.0, 4.0

_RULES = """version: 1
engines:
  llm:
    endpoints: http://127.0.0.1:{port}
    protocol: {protocol}
    timeout: 5s
    {overload}
routes: [{{name: all, engine: llm}}]
classes: [{{name: urgent}}, {{name: normal}}, {{name: batch}}]
"""


def _start_ours(name: str, overload: str, site: Site, engine: int, protocol: str) -> Running:
    rules = _RULES.format(port=engine, overload=overload, protocol=protocol)
    return start_pointsman(site, rules, lambda ports: {ENGINE: ports["http"]}, name)


def _start_envoy(site: Site, engine: int, protocol: str) -> Running:
    port = free_port()
    listener = configs.envoy_listener("bench", port, [configs.envoy_route("/", "llm")])
    kind = "type.googleapis.com/envoy.extensions.filters.http.adaptive_concurrency.v3.AdaptiveConcurrency"
    adaptive = {
        "@type": kind,
        "gradient_controller_config": {
            "sample_aggregate_percentile": {"value": 50},
            "concurrency_limit_params": {"concurrency_update_interval": "0.1s"},
            "min_rtt_calc_params": {"jitter": {"value": 10}, "interval": "60s", "request_count": 50},
        },
        "enabled": {"default_value": True, "runtime_key": "adaptive_concurrency.enabled"},
    }
    filters = listener["filter_chains"][0]["filters"][0]["typed_config"]["http_filters"]
    filters.insert(0, {"name": "envoy.filters.http.adaptive_concurrency", "typed_config": adaptive})
    return start_envoy(site, configs.envoy_document([listener], [configs.envoy_cluster("llm", engine)]), {ENGINE: port})


def _start_known(name: str, site: Site, engine: int, protocol: str) -> Running:
    return PROXIES[name].start(site, engine)


STARTS: dict[str, Callable[[Site, int, str], Running]] = {
    "ours without": partial(_start_ours, "ours-without", ""),
    "ours": partial(_start_ours, "ours", "overload: {}"),
    "envoy": partial(_start_known, "envoy"),
    "envoy adaptive": _start_envoy,
    "vllm-router": partial(_start_known, "vllm-router"),
}


@dataclass(slots=True)
class Outcome:
    """The figures of one proxy; times are in milliseconds."""

    proxy: str
    capacity: float
    capacity_after: float
    goodput: float  # share of the capacity
    unloaded_p99: float
    p50: dict[str, float]
    p99: dict[str, float]
    answered: dict[str, float]  # share of the requests of each class
    statuses: dict[str, int]
    refusal_p99: float
    recovery: float  # seconds
    memory_before: float  # MB of the process that carries the requests
    memory_after: float


def quantile(values: list[float], share: float) -> float:
    values = sorted(values)
    return round(1000 * values[min(len(values) - 1, int(share * len(values)))], 1) if values else 0.0


def judge(name: str, found: tuple[float, float], replies: list[Reply], memory: tuple[float, float]) -> Outcome:
    most = max(found)
    unloaded = [each.seconds for each in replies if 1.0 < each.due < UNLOADED and each.status == 200]
    loaded_at, fallen_at = UNLOADED + WARMUP, UNLOADED + WARMUP + LOADED
    loaded = [each for each in replies if loaded_at < each.due < fallen_at]
    good = [each for each in loaded if each.status == 200]
    ended = [each for each in replies if each.status == 200 and loaded_at < each.due + each.seconds < fallen_at]
    normal = quantile(unloaded, 0.99)
    late = [e.due for e in replies if e.due > fallen_at and (e.status != 200 or 1000 * e.seconds > 2 * normal)]
    by_class = {n: [e.seconds for e in good if e.level == level] for level, n in enumerate(CLASSES)}
    sent = Counter(each.level for each in loaded)
    return Outcome(
        proxy=name,
        capacity=round(found[0], 1),
        capacity_after=round(found[1], 1),
        goodput=round(len(ended) / LOADED / most, 3),
        unloaded_p99=normal,
        p50={n: quantile(values, 0.5) for n, values in by_class.items()},
        p99={n: quantile(values, 0.99) for n, values in by_class.items()},
        answered={n: round(len(values) / max(1, sent[level]), 3) for level, (n, values) in enumerate(by_class.items())},
        statuses={str(status): number for status, number in Counter(each.status for each in loaded).items()},
        refusal_p99=quantile([each.seconds for each in loaded if each.status not in (0, 200)], 0.99),
        recovery=round(max(late, default=fallen_at) - fallen_at, 2),
        memory_before=memory[0],
        memory_after=memory[1],
    )


def measure(name: str, engine: OverloadEngine, site: Site, stack: ExitStack) -> tuple[Outcome, list[Reply]]:
    port = engine.start(site, f"engine-{name.replace(' ', '-')}", stack)

    def most_of_engine() -> float:
        return asyncio.run(capacity(OpenLoop(port, engine.path, engine.body, 60.0), engine.concurrency, 4.0))

    most_of_engine()  # warm up
    most = most_of_engine()
    proxy = STARTS[name](site, port, engine.protocol)

    def resident() -> float:
        return round(proxy.worker.memory_info().rss / 1e6, 1) if proxy.worker is not None else 0.0

    load, before = OpenLoop(proxy.ports[ENGINE], engine.path, engine.body, PATIENCE), resident()
    asyncio.run(load.run([(UNLOADED, most / 5), (WARMUP + LOADED, 3 * most), (AFTER, most / 2)]))
    memory = before, resident()
    return judge(name, (most, most_of_engine()), load.replies, memory), load.replies


def plot(replies: dict[str, list[Reply]], outcomes: list[Outcome], path: Path) -> None:
    """Answers in a second and the latency of the highest class, over time."""
    sheet = Figure(figsize=(10, 6.4), layout="constrained")
    FigureCanvasAgg(sheet)
    rates, latencies = sheet.subplots(2, 1, sharex=True)
    for outcome in outcomes:
        good = [each for each in replies[outcome.proxy] if each.status == 200]
        counts = Counter(int(each.due + each.seconds) for each in good)
        seconds = range(int(UNLOADED + WARMUP + LOADED + AFTER))
        rates.plot(seconds, [counts[second] / outcome.capacity for second in seconds], label=outcome.proxy)
        urgent: dict[int, list[float]] = {}
        for each in good:
            if each.level == 0:
                urgent.setdefault(int(each.due), []).append(each.seconds)
        shown = sorted(urgent)
        latencies.plot(shown, [quantile(urgent[second], 0.99) for second in shown], label=outcome.proxy)
    rates.set_ylabel("answers / capacity")
    rates.legend(fontsize=8)
    latencies.set_ylabel("p99 of the highest class, ms")
    latencies.set_yscale("log")
    latencies.set_xlabel("seconds; load: 0.2, 3 and 0.5 times the capacity")
    sheet.savefig(path, dpi=110)


def table(outcomes: list[Outcome]) -> Table:
    shown = Table(*("proxy", "goodput", "unloaded p99", *(f"{n} p50 / p99, answered" for n in CLASSES)))
    for heading in ("refused in (p99)", "recovery", "memory"):
        shown.add_column(heading)
    for it in outcomes:
        classes = [f"{it.p50[n]:.0f} / {it.p99[n]:.0f} ms, {it.answered[n]:.0%}" for n in CLASSES]
        refused = f"{it.refusal_p99:.0f} ms" if it.refusal_p99 else "-"
        memory = f"{it.memory_before:.0f} -> {it.memory_after:.0f} MB"
        shown.add_row(
            it.proxy, f"{it.goodput:.0%}", f"{it.unloaded_p99:.0f} ms", *classes, refused, f"{it.recovery} s", memory
        )
    return shown


def main(
    engine: Annotated[str, typer.Option(help=f"One of {', '.join(ENGINES)}.")] = "small",
    only: Annotated[str, typer.Option(help="Only this proxy, or else those whose names contain it.")] = "",
    routers: Annotated[Path | None, typer.Option(help="A virtual environment with vllm-router.")] = None,
) -> None:
    """Overload an engine behind each proxy."""
    if routers is not None:
        from bench import openai_proxies

        openai_proxies.ROUTERS = Environment(routers, openai_proxies.ROUTERS.packages)
    raise_file_limit()
    outcomes: list[Outcome] = []
    replies: dict[str, list[Reply]] = {}
    for name in STARTS:
        if name != only if only in STARTS else only not in name:
            continue
        if name in PROXIES and PROXIES[name].find() is None:
            print(f"{name} is not installed: {PROXIES[name].how_to_get}")
            continue
        with TemporaryDirectory() as folder, Children(Path(folder)) as children, ExitStack() as stack:
            outcome, replies[name] = measure(name, ENGINES[engine], Site(children, Path(folder), None), stack)
        outcomes.append(outcome)
        Console(width=200).print(table([outcome]))
    results = Path(__file__).parent / "results"
    results.mkdir(exist_ok=True)
    document: dict[str, Any] = {"load": os.getloadavg(), "outcomes": [asdict(each) for each in outcomes]}
    (results / f"overload-{engine}.json").write_text(json.dumps(document, indent=1))
    plot(replies, outcomes, results / f"overload-{engine}.png")
    Console(width=200).print(table(outcomes))


if __name__ == "__main__":
    typer.run(main)
