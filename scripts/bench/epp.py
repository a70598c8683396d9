"""What an endpoint picker costs: Envoy alone, with `pointsman epp`, and the gateway, before the same canned engine.

    python scripts/bench/epp.py               # about two minutes
    python scripts/bench/epp.py --rounds 5

`full-duplex`: every body passes through the picker (FULL_DUPLEX_STREAMED). `buffered`: Envoy holds bodies and sends
them whole (BUFFERED), with `allow_mode_override` those alone that the picker must see. Latency is that of one
connection; CPU is for one request of many connections.
"""

import copy
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Annotated, Any

sys.path[0] = str(Path(__file__).resolve().parent.parent)

import psutil  # noqa: E402
import typer  # noqa: E402
import yaml  # noqa: E402
from rich.console import Console  # noqa: E402
from rich.progress import track  # noqa: E402
from rich.table import Table  # noqa: E402

from bench import command, openai_messages  # noqa: E402
from bench.load import LoadSpec  # noqa: E402
from bench.openai_load import OpenAILoad  # noqa: E402
from bench.processes import SCRIPTS, BenchError, Children, free_port, raise_file_limit, tree  # noqa: E402
from bench.programs import Running, Site, start_envoy, start_on_port, start_pointsman, wait_until  # noqa: E402
from bench.rounds import Cores  # noqa: E402
from bench.window import LoadResult, run_module  # noqa: E402

_EXAMPLE = SCRIPTS.parent / "docker" / "epp" / "envoy.yaml"
_MODES = {"full-duplex": "FULL_DUPLEX_STREAMED", "buffered": "BUFFERED"}
_LONGEST_BODY = 4 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class EppCase:
    """A request of `bench.load`, or of `bench.openai_load` with the answer to it."""

    name: str
    exchange: str
    is_chat: bool = False
    connections: int = 16


CASES = (
    EppCase("V2 infer of 300 bytes", "small"),
    EppCase("V2 infer of 600 KB", "tensor", connections=8),
    EppCase("chat of 1 KB", "chat", is_chat=True),
    EppCase("chat of 220 KB", "chat-long", is_chat=True, connections=8),
)


@dataclass(slots=True)
class EppFigures:
    """Of all rounds: latency in microseconds, requests in a second, CPU microseconds of a request by process."""

    latency_us: list[float]
    per_second: list[float]
    proxy_us: list[float]
    picker_us: list[float]


def _rules(ports: dict[str, list[int]]) -> str:
    engines: dict[str, Any] = {
        name: {"endpoints": [f"http://127.0.0.1:{port}" for port in own], "models": {"source": "none"}}
        for name, own in ports.items()
    }
    engines["llm"] |= {"protocol": "openai", "balance": "prefix"}
    routes = [{"name": "chat", "match": {"protocol": "openai"}, "engine": "llm"}, {"name": "all", "engine": "v2"}]
    return json.dumps({"version": 1, "engines": engines, "routes": routes})


def _with_picker(mode: str, port: int, picker_port: int) -> dict[str, Any]:
    """The example configuration."""
    config: dict[str, Any] = yaml.safe_load(_EXAMPLE.read_text())
    resources = config["static_resources"]
    listener = resources["listeners"][0]
    listener["address"]["socket_address"] = {"address": "127.0.0.1", "port_value": port}
    listener["per_connection_buffer_limit_bytes"] = _LONGEST_BODY
    address = resources["clusters"][2]["load_assignment"]["endpoints"][0]["lb_endpoints"][0]["endpoint"]["address"]
    address["socket_address"]["port_value"] = picker_port
    processor = _manager(config)["http_filters"][0]["typed_config"]
    processor["processing_mode"]["request_body_mode"] = _MODES[mode]
    processor["allow_mode_override"] = mode == "buffered"
    if mode == "buffered":
        processor["processing_mode"]["request_trailer_mode"] = "SKIP"
    return config


def _alone(port: int, ports: dict[str, list[int]]) -> dict[str, Any]:
    """The same Envoy without a picker: a cluster for each engine."""
    config = copy.deepcopy(_with_picker("buffered", port, 1))
    manager = _manager(config)
    del manager["http_filters"][0]
    routes = manager["route_config"]["virtual_hosts"][0]["routes"]
    routes[0] = {"match": {"prefix": "/v1/"}, "route": {"cluster": "llm", "timeout": "0s"}}
    routes[1]["route"]["cluster"] = "v2"
    config["static_resources"]["clusters"] = [
        {
            "name": name,
            "type": "STATIC",
            "connect_timeout": "1s",
            "load_assignment": {
                "cluster_name": name,
                "endpoints": [
                    {
                        "lb_endpoints": [
                            {"endpoint": {"address": {"socket_address": {"address": "127.0.0.1", "port_value": each}}}}
                            for each in own
                        ]
                    }
                ],
            },
        }
        for name, own in ports.items()
    ]
    return config


def _manager(config: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = config["static_resources"]["listeners"][0]["filter_chains"][0]["filters"][0]["typed_config"]
    return found


def _start_picker(site: Site, rules: str) -> tuple[psutil.Process, int]:
    path, ready = site.folder / "epp-rules.yaml", site.folder / "epp-ready.json"
    path.write_text(rules)
    flags = ("--port", "0", "--metrics-port", "0", "--ready-file", str(ready))
    argv = [sys.executable, "-m", "gateway", "epp", "--rules", str(path), *flags]
    process = site.children.spawn("epp", argv, site.cores, {"PYTHONPATH": str(SCRIPTS.parent)})
    wait_until(lambda: ready.exists() and ready.stat().st_size > 0, site, process, "epp")
    return process, json.loads(ready.read_text())["ext_proc"]


def _measure(
    case: EppCase, running: Running, picker: psutil.Process | None, connections: int, seconds: float, cores: Cores
) -> LoadResult:
    groups = {"proxy": running.groups()["tree"]}
    if picker is not None:
        groups["picker"] = [each.pid for each in tree(picker)]
    port, serial = running.ports["http"], connections == 1
    if case.is_chat:
        right = openai_messages.chat_answer().decode()
        chat = OpenAILoad(case.exchange, port, connections, seconds, groups, serial=serial, right=right)
        return run_module("bench.openai_load", chat, seconds, cores.others)
    spec = LoadSpec(case.exchange, port, connections, seconds, groups, serial=serial)
    return run_module("bench.load", spec, seconds, cores.others)


def main(
    rounds: command.Rounds = 3,
    seconds: Annotated[float, typer.Option(min=0.5, max=60, help="Length of one round.")] = 2.0,
    results: command.ResultsFolder = command.RESULTS,
) -> None:
    """Measure what an endpoint picker adds to Envoy."""
    raise_file_limit()
    cores, figures = Cores.split(), dict[tuple[str, str], EppFigures]()
    with TemporaryDirectory(prefix="pointsman-bench-") as path, Children(folder := Path(path)) as children:
        others = Site(children, folder, cores.others)
        ports = {name: [free_port(), free_port()] for name in ("v2", "llm")}
        for name, module in (("v2", "bench.upstream"), ("llm", "bench.openai_upstream")):
            for port in ports[name]:
                start_on_port(others, f"{name}-{port}", (sys.executable, "-m", module, "--port", str(port)), port, {})
        rules = _rules(ports)
        picker, picker_port = _start_picker(Site(children, folder, cores.proxy), rules)
        started: dict[str, tuple[Running, psutil.Process | None]] = {}

        def start(name: str, make: Callable[[int], dict[str, Any]], asked: psutil.Process | None) -> None:
            port = free_port()
            (own := folder / name).mkdir()
            site = Site(children, own, cores.proxy)
            started[name] = start_envoy(site, json.dumps(make(port)), {"http": port}), asked

        start("envoy", lambda port: _alone(port, ports), None)
        for mode in _MODES:
            start(f"envoy, {mode}", lambda port, mode=mode: _with_picker(mode, port, picker_port), picker)  # type: ignore[misc]
        gateway = start_pointsman(Site(children, folder, cores.proxy), rules, dict, options=("--redis", "off"))
        started["gateway"] = gateway, None
        turns = [(case, number) for case in CASES for number in range(rounds)]
        for case, number in track(turns, description="measuring", console=Console(stderr=True)):
            for name, (running, asked) in list(started.items())[:: 1 if number % 2 else -1]:
                found = figures.setdefault((case.name, name), EppFigures([], [], [], []))
                try:
                    found.latency_us.append(_measure(case, running, asked, 1, seconds / 2, cores).p50_us)
                    loaded = _measure(case, running, asked, case.connections, seconds, cores)
                except BenchError as error:
                    Console(stderr=True).print(f"{case.name}, {name}: {error}", markup=False)
                    continue
                found.per_second.append(loaded.units / loaded.seconds)
                found.proxy_us.append(loaded.group_cpu_seconds["proxy"] / loaded.units * 1e6)
                found.picker_us.append(loaded.group_cpu_seconds.get("picker", 0.0) / loaded.units * 1e6)
    _print(figures)
    results.mkdir(parents=True, exist_ok=True)
    (results / "epp.json").write_text(json.dumps({" | ".join(key): _medians(each) for key, each in figures.items()}))


def _medians(figures: EppFigures) -> dict[str, float]:
    names = EppFigures.__slots__
    return {name: median(values) for name in names if (values := getattr(figures, name))}


def _print(figures: dict[tuple[str, str], EppFigures]) -> None:
    table = Table("case", "proxy", "p50 µs, one connection", "requests/s", "proxy CPU µs", "picker CPU µs")
    for (case, name), each in figures.items():
        found = _medians(each)
        cells = (f"{found.get(key, float('nan')):,.0f}" for key in EppFigures.__slots__)
        table.add_row(case, name, *cells)
    Console(width=120).print(table)


if __name__ == "__main__":
    typer.run(main)
