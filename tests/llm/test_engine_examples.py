"""The example of each engine (routing_rules/engines), all of them in one gateway, each before a server of its kind."""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from gateway.config.rules import load_rules
from gateway.config.specs import RulesSpec
from gateway.protocol.engine_protocols import EngineProtocol
from tests.llm.clients.of_openai import ask_chat
from tests.llm.clients.values import TextRequest
from tests.llm.fleet import Fleet
from tests.support import plain_http
from tests.support.canned_llm import CannedLLM
from tests.support.child import REPOSITORY
from tests.support.host import HostProcess
from tests.support.servers import SAMPLE_MODELS, GatewayProcess
from tests.support.waiting import eventually

pytestmark = pytest.mark.timeout(120)

EXAMPLES = REPOSITORY / "routing_rules" / "engines"


def _rules(environment: Mapping[str, str]) -> RulesSpec:
    loaded = load_rules([EXAMPLES], environment)
    assert loaded.problems == ()
    assert loaded.rules is not None
    return loaded.rules


RULES = _rules({})
MODELS = {route.engine: route.match.model[0] for route in RULES.routes if route.engine and route.match.model}
OPENAI = [engine.name for engine in RULES.engines.values() if engine.protocol is EngineProtocol.OPENAI]
NAME_OF_MLX = "mlx-community/Llama-3.2-3B-Instruct-4bit"

# The model, the input's name and datatype, the data and the shape; what is answered.
TENSORS: dict[str, tuple[str, dict[str, Any], list[Any]]] = {
    "tf-serving": ("half_plus_two", {"name": "x", "datatype": "FP32", "shape": [2, 1], "data": [1, 5]}, [2.5, 4.5]),
    "torchserve": ("plain", {"name": "text", "datatype": "BYTES", "shape": [1], "data": ["one two"]}, ["ONE TWO"]),
    "mlserver": ("streamer", {"name": "text", "datatype": "BYTES", "shape": [1], "data": ["one two"]}, ["ONE TWO"]),
}


@pytest.fixture(scope="module")
def gateway(fleet: Fleet, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    """One gateway with all examples, whose addresses come from the environment, as an operator gives them."""
    directory = tmp_path_factory.mktemp("examples")
    names = ",".join([NAME_OF_MLX, *(MODELS[name] for name in OPENAI)])
    canned = CannedLLM.start(directory / "canned", extra_args=["--models", names])
    host = HostProcess.start(
        [SAMPLE_MODELS], directory / "host", extra_args=["--model-control-mode", "explicit", "--load-model", "adder"]
    )
    with canned.running():
        environment = dict.fromkeys(_variables(OPENAI), canned.http_url)
        environment |= _addresses(fleet)
        host.wait_ready()
        environment |= {"LANGUAGE_URL": host.http_url, "LANGUAGE_GRPC": host.grpc_url}
        (directory / "gateway").mkdir()
        with pytest.MonkeyPatch.context() as patch:
            for name, value in environment.items():
                patch.setenv(name, value)
            started = GatewayProcess.start("version: 1\n", directory / "gateway", extra_args=["--rules", str(EXAMPLES)])
        yield started.wait_ready()
        started.stop()
    host.stop()


def _variables(names: list[str]) -> list[str]:
    texts = ((EXAMPLES / f"{name}.yaml").read_text() for name in names)
    return [variable for text in texts for variable in re.findall(r"\$\{(\w+_URL):-", text)]


def _addresses(fleet: Fleet) -> dict[str, str]:
    found: dict[str, str] = {}
    if "triton" in fleet.urls:
        url, grpc = fleet.urls["triton"]
        for name in ("TRTLLM", "TRITON_VLLM"):
            found |= {f"{name}_URL": url, f"{name}_GRPC": grpc.removeprefix("grpc://")}
    if "mlserver" in fleet.urls:
        both = fleet.urls["mlserver"][0]
        found |= {"MLSERVER_URL": both["url"], "MLSERVER_GRPC": both["grpc"]}
    if "torchserve" in fleet.urls:
        found |= {"TORCHSERVE_URL": fleet.urls["torchserve"][0], "TORCHSERVE_KEY": fleet.torchserve_key}
    return found | {"TF_SERVING_URL": fleet.urls["tfserving"][0]}


@pytest.mark.parametrize("name", OPENAI)
def test_an_openai_engine(gateway: GatewayProcess, name: str) -> None:
    """A chat by OpenAI's client reaches the engine of the example, which its probes find ready."""
    model = NAME_OF_MLX if name == "mlx-lm" else MODELS[name]
    reply = ask_chat(gateway, TextRequest(model))
    assert reply.text == "one two three"
    assert reply.headers["x-pointsman-engine"] == name
    eventually(lambda: _conditions(gateway, name) == ["ready"])


def _conditions(gateway: GatewayProcess, name: str) -> list[str]:
    engines = plain_http.get(f"{gateway.admin_url}/engines").json()["engines"]
    return [endpoint["condition"] for engine in engines if engine["name"] == name for endpoint in engine["endpoints"]]


@pytest.mark.triton
def test_a_triton_with_language_models(fleet: Fleet, gateway: GatewayProcess) -> None:
    """A chat becomes the ensemble's prompt by the template beside the example; generate passes."""
    if "triton" in fleet.missing:
        pytest.skip(fleet.missing["triton"])
    reply = ask_chat(gateway, TextRequest("llama-3-trtllm"))
    assert reply.headers["x-pointsman-engine"] == "triton-tensorrt-llm"
    assert reply.text
    body = {"text_input": "one two", "stream": False}
    generated = plain_http.post(f"{gateway.http_url}/v2/models/vllm_model/generate", json=body)
    assert generated.status_code == 200
    assert generated.headers["x-pointsman-engine"] == "triton-vllm"


@pytest.mark.parametrize("name", TENSORS)
def test_an_engine_of_tensors(fleet: Fleet, gateway: GatewayProcess, name: str) -> None:
    """The request in the example's comment is answered."""
    if name in fleet.missing:
        pytest.skip(fleet.missing[name])
    model, tensor, expected = TENSORS[name]
    reply = plain_http.post(f"{gateway.http_url}/v2/models/{model}/infer", json={"inputs": [tensor]})
    assert reply.json()["outputs"][0]["data"] == expected
    assert reply.headers["x-pointsman-engine"] == name


def test_the_engine_host(gateway: GatewayProcess) -> None:
    """A model of the samples is answered by the host of the example."""
    tensors = [{"name": name, "datatype": "INT32", "shape": [1, 3], "data": [1, 2, 3]} for name in ("a", "b")]
    reply = plain_http.post(f"{gateway.http_url}/v2/models/adder/infer", json={"inputs": tensors})
    assert reply.json()["outputs"][0]["data"] == [2, 4, 6]
    assert reply.headers["x-pointsman-engine"] == "language"


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.yaml")), ids=lambda path: path.stem)
def test_each_example_stands_alone(path: Path) -> None:
    """Each file loads by itself without a problem, has tests, names its own command, and is linked from the page."""
    loaded = load_rules([path], {})
    assert loaded.problems == ()
    assert loaded.rules is not None and loaded.rules.tests
    assert f"--rules routing_rules/engines/{path.name}" in path.read_text()
    assert f"(engines/{path.name})" in (EXAMPLES.parent / "README.md").read_text()
