"""One of every engine, and one gateway in front of them all; clients name an engine as their model."""

import contextlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from gateway.demo.triton import TritonProcess, why_unavailable
from tests.llm.pairs import ENGINES, Engine
from tests.support.canned_llm import CannedLLM
from tests.support.servers import GatewayProcess
from tests.support.tfserving import TfServing

MODELS = Path(__file__).parent / "models"

# Behind a name: the same engine, with unsupported options dropped.
DROPPING = "-dropping"

# Messages and tools as some models take them; no engine here parses the result.
CHAT_TEMPLATE = """\
{%- for tool in tools or [] %}tool {{ tool.function.name }} {% endfor -%}
{%- for message in messages %}{{ message.role }}: \
{% if message.content is string %}{{ message.content }}{% else %}\
{% for part in message.content %}{{ part.text or '<' + part.type + '>' }} {% endfor %}{% endif %} {% endfor -%}
"""

PLAIN_TEMPLATE = "{% for message in messages %}{{ message.role }}: {{ message.content }} {% endfor %}"


@dataclass(frozen=True)
class Fleet:
    """The gateway, the engine whose requests can be inspected, its V2 twin, and why a server is missing. `urls` are the
    servers' addresses as rules write them, for REST and for gRPC."""

    gateway: GatewayProcess
    canned: CannedLLM
    canned_v2: CannedLLM
    missing: Mapping[str, str]
    urls: Mapping[str, tuple[Any, str]]
    torchserve_key: str

    def need(self, engine: Engine) -> None:
        """Skip the test where the engine cannot run here."""
        if engine.server in self.missing:
            pytest.skip(self.missing[engine.server])


@pytest.fixture(scope="session")
def fleet(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """All of them; they start in parallel."""
    directory = tmp_path_factory.mktemp("fleet")
    missing: dict[str, str] = {}
    with contextlib.ExitStack() as stops:
        canned = CannedLLM.start(directory / "canned")
        canned_v2 = CannedLLM.start(directory / "canned-v2", v2=True)
        tfserving = TfServing.start(directory / "tfserving")
        for child in (canned, canned_v2, tfserving):
            stops.callback(child.stop)
        urls: dict[str, tuple[Any, str]] = {}
        reason = why_unavailable()
        if reason is None:
            # Connections that the gateway keeps open would delay Triton's exit.
            triton = TritonProcess.start(
                MODELS, extra_args=["--exit-timeout-secs=1"], log_path=directory / "triton.log"
            )
            stops.callback(triton.kill)
            urls["triton"] = (triton.http_url, f"grpc://{triton.grpc_url}")
        else:
            missing["triton"] = reason
        key = ""
        for name in ("torchserve", "mlserver"):
            try:
                server = request.getfixturevalue(name)
            except pytest.skip.Exception as skipped:
                missing[name] = str(skipped)
            else:
                both = {"url": server.http_url, "grpc": f"127.0.0.1:{server.ports['grpc']}"}
                urls[name] = (both if name == "mlserver" else server.http_url, f"grpc://{both['grpc']}")
                key = server.inference_key if name == "torchserve" else key
        if reason is None:
            triton.wait_ready()
        for name, child in (("canned", canned), ("canned_v2", canned_v2), ("tfserving", tfserving)):
            urls[name] = (child.wait_ready().http_url, f"grpc://{child.grpc_url}" if name == "tfserving" else "")
        (directory / "counting.jinja").write_text(CHAT_TEMPLATE)
        (directory / "plain.jinja").write_text(PLAIN_TEMPLATE)
        gateway = GatewayProcess.start(_rules(urls, key), directory)
        stops.callback(gateway.stop)
        yield Fleet(gateway.wait_ready(), canned, canned_v2, missing, urls, key)


# The requests of a V2 engine can be inspected where the canned engine plays it.
CANNED_V2 = {"seen_vllm": "vllm_model", "seen_trtllm": "ensemble"}


def _rules(urls: Mapping[str, tuple[Any, str]], torchserve_key: str) -> str:
    engines: dict[str, Any] = {}
    routes = []
    for engine in ENGINES:
        if engine.server not in urls:
            continue
        keys = {"protocol": engine.protocol, "endpoints": [urls[engine.server][engine.by_grpc]], **dict(engine.keys)}
        if engine.server == "torchserve":
            keys["api_key"] = torchserve_key
        engines[engine.name] = keys
        routes.append((engine.name, engine.model))
    for name, model in CANNED_V2.items():
        engines[name] = {"protocol": "kserve", "endpoints": [urls["canned_v2"][0]], "chat_template": "counting.jinja"}
        routes.append((name, model))
    for name, like, model in (
        ("plain_completions", "completions", "canned"),
        ("plain_vllm", "seen_vllm", "vllm_model"),
    ):
        engines[name] = engines[like] | {"chat_template": "plain.jinja"}
        routes.append((name, model))
    for name, model in list(routes):
        if engines[name]["protocol"] in ("openai", "kserve"):
            engines[name + DROPPING] = engines[name] | {"unsupported": "drop"}
            routes.append((name + DROPPING, model))
    reply = [{"name": name, "match": {"model": name}, "engine": name, "model": model} for name, model in routes]
    return json.dumps({"version": 1, "engines": engines, "routes": reply})
