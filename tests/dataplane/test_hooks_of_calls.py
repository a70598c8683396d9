"""Hooks of routes that gRPC calls take: unary calls and the messages of streams pass them as V2's JSON."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from tritonclient.grpc import service_pb2, service_pb2_grpc

from tests.dataplane.authenticated import GrpcEngine, RestEngine, Served, engines

CODE = """
from gateway.hooks import Change, Reject

class Hook:
    def on_request(self, request):
        assert request.protocol == "grpc" and request.method == "POST", request.protocol
        assert request.operation == "infer" and request.model in ("by-grpc", "by-rest")
        if "x-no" in request.headers or request.json["parameters"].get("no"):
            return Reject(403, "not you")
        assert request.json["inputs"][0]["name"] == "x" and len(request.body) > request.json_bytes
        return Change(headers={"x-hooked": "yes", "x-gone": None})
"""

RULES = """
version: 1
engines:
  by-grpc: {{endpoints: ["grpc://{grpc}"]}}
  by-rest: {{endpoints: ["http://{rest}"]}}
routes:
  - {{name: by-grpc, match: {{model: by-grpc}}, engine: by-grpc, hooks: h:Hook}}
  - {{name: by-rest, match: {{model: by-rest}}, engine: by-rest, hooks: h:Hook}}
"""


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[tuple[Served, RestEngine, GrpcEngine]]:
    (tmp_path / "h.py").write_text(CODE)
    with engines() as (rest, by_grpc):
        served = Served(RULES.format(grpc=by_grpc.address, rest=rest.address), tmp_path)
        try:
            yield served, rest, by_grpc
        finally:
            served.stop()


def request(model: str, *, no: bool = False) -> service_pb2.ModelInferRequest:
    made = service_pb2.ModelInferRequest(model_name=model, raw_input_contents=[bytes(4)])
    tensor = made.inputs.add(name="x", datatype="FP32")
    tensor.shape.append(1)
    made.parameters["no"].bool_param = no
    return made


@pytest.mark.parametrize("model", ["by-grpc", "by-rest"])
def test_unary_calls_pass_hooks(scene: tuple[Served, RestEngine, GrpcEngine], model: str) -> None:
    """They see V2's JSON and the metadata; a change reaches the engine, a refusal has its gRPC status."""
    served, rest, by_grpc = scene
    with grpc.insecure_channel(served.address) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        stub.ModelInfer(request(model), metadata=[("x-gone", "1"), ("x-kept", "1")], timeout=120)
        received = (by_grpc if model == "by-grpc" else rest).received[-1]
        assert (received["x-hooked"], received["x-kept"], received.get("x-gone")) == ("yes", "1", None)
        with pytest.raises(grpc.RpcError) as refused:
            stub.ModelInfer(request(model), metadata=[("x-no", "1")], timeout=120)
        assert refused.value.code() is grpc.StatusCode.PERMISSION_DENIED
        assert refused.value.details() == "not you"


@pytest.mark.parametrize("model", ["by-grpc", "by-rest"])
def test_each_message_of_a_stream_passes_hooks(scene: tuple[Served, RestEngine, GrpcEngine], model: str) -> None:
    """A message that a hook rejects is answered by an error, and the stream goes on."""
    served, rest, by_grpc = scene
    with grpc.insecure_channel(served.address) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        messages = [request(model), request(model, no=True), request(model)]
        answers = [answer.error_message for answer in stub.ModelStreamInfer(iter(messages), timeout=120)]
        assert answers == ["", "not you", ""]
        assert len((by_grpc if model == "by-grpc" else rest).received) == 2
