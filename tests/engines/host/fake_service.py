"""A service for the fronts' tests: models are functions in this process, which respond at once or on command."""

from __future__ import annotations

import json
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from engines.core.calls import InferenceCall
from engines.core.errors import EngineError, ErrorCode, internal, invalid
from engines.core.messages import InferRequest, InferResponse, SharedMemory, TensorData
from gateway.protocol.conversion.tensors import join_elements, split_elements
from gateway.protocol.protobuf import Message, message
from gateway.protocol.restricted_apis import RestrictedApis

Answer = Callable[[InferenceCall], None]


@dataclass(eq=False)
class FakeModel:
    name: str
    answer: Answer
    inputs: tuple[tuple[str, str, tuple[int, ...]], ...]
    outputs: tuple[tuple[str, str, tuple[int, ...]], ...]
    version: str = "1"
    is_decoupled: bool = False
    stream_input: str = ""
    max_batch_size: int = 0
    of_output: dict[str, Sequence[str]] = field(default_factory=dict)

    @property
    def has_batches(self) -> bool:
        return self.max_batch_size > 0

    @property
    def config(self) -> Message:
        config = message("inference.ModelConfig")(name=self.name, max_batch_size=self.max_batch_size)
        for name, datatype, dims in self.inputs:
            kind = "TYPE_STRING" if datatype == "BYTES" else f"TYPE_{datatype}"
            config.input.add(name=name, data_type=kind, dims=dims)
        for name, datatype, dims in self.outputs:
            kind = "TYPE_STRING" if datatype == "BYTES" else f"TYPE_{datatype}"
            config.output.add(name=name, data_type=kind, dims=dims)
        config.model_transaction_policy.decoupled = self.is_decoupled
        return config

    @property
    def metadata(self) -> Message:
        result = message("inference.ModelMetadataResponse")(name=self.name, versions=[self.version], platform="python")
        batch = (-1,) if self.has_batches else ()
        for tensors, declared in ((result.inputs, self.inputs), (result.outputs, self.outputs)):
            for name, datatype, dims in declared:
                tensors.add(name=name, datatype=datatype, shape=batch + dims)
        return result

    def labels(self, output: str) -> Sequence[str]:
        return self.of_output.get(output, ())


class FakeRegions:
    """Region "known" of 64 bytes."""

    def resolve(self, region: str, offset: int, byte_size: int) -> SharedMemory:
        if region != "known":
            raise EngineError(ErrorCode.NOT_FOUND, f"Unable to find shared memory region: '{region}'")
        if offset + byte_size > 64:
            raise invalid(f"Invalid offset + byte size for shared memory region: '{region}'")
        return SharedMemory("/known", offset, byte_size)


class FakeService:
    """Records every call in `calls` and its request in `requests`; calls of `sleeper` stay in `sleeping` until a test
    ends them."""

    def __init__(self, **restrictions: tuple[str, str]) -> None:
        self.regions = FakeRegions()
        self.restrictions = {
            front: RestrictedApis(
                {name.partition("_")[2]: each for name, each in restrictions.items() if name.startswith(f"{front}_")}
            )
            for front in ("rest", "grpc")
        }
        self.requests: list[InferRequest] = []
        self.calls: list[InferenceCall] = []
        self.sleeping: list[InferenceCall] = []
        self.rpcs: list[tuple[str, Message]] = []
        self.is_ready = True
        self.models = {model.name: model for model in self._models()}

    def model(self, name: str, version: str) -> FakeModel:
        model = self.models.get(name)
        if model is None:
            raise EngineError(ErrorCode.NOT_FOUND, f"Request for unknown model: '{name}' is not found")
        if version not in ("", model.version):
            text = f"Request for unknown model: '{name}' version {version} is not found"
            raise EngineError(ErrorCode.NOT_FOUND, text)
        return model

    def ready_models(self) -> list[FakeModel]:
        return list(self.models.values())

    def infer(self, call: InferenceCall) -> None:
        self.requests.append(call.request)
        self.calls.append(call)
        model = self.models[call.request.model]
        missing = [name for name, _, _ in model.inputs[:1] if name not in {each.name for each in call.request.inputs}]
        if missing:
            names = ",".join(f"'{each.name}'" for each in call.request.inputs)
            call.fail(
                invalid(
                    f"[request id: {call.request.id or '<id_unknown>'}] expected {len(model.inputs)} inputs but got "
                    f"{len(call.request.inputs)} inputs for model '{model.name}'. Got input(s) [{names}], but missing "
                    f"required input(s) ['{missing[0]}']. Please provide all required input(s)."
                )
            )
            return
        model.answer(call)

    def metadata(self, name: str, version: str) -> Message:
        return self.model(name, version).metadata

    async def rpc(self, name: str, request: Message) -> Message:
        self.rpcs.append((name, request))
        response = message(f"inference.{name}Response")()
        match name:
            case "ServerLive":
                response.live = True
            case "ServerReady":
                response.ready = self.is_ready
            case "ModelReady":
                self.model(request.name, request.version)
                response.ready = True
            case "ServerMetadata":
                response.name, response.version = "fake", "1.0"
                response.extensions.extend(["classification", "sequence"])
            case "ModelMetadata":
                response = self.metadata(request.name, request.version)
            case "ModelConfig":
                response.config.CopyFrom(self.model(request.name, request.version).config)
            case "RepositoryIndex":
                for model in self.models.values():
                    response.models.add(name=model.name, version=model.version, state="READY")
            case "RepositoryModelLoad" if request.model_name not in self.models:
                raise internal(f"failed to load '{request.model_name}', failed to poll from model repository")
            case "LogSettings":
                response.settings["log_info"].bool_param = True
        return response

    def _models(self) -> list[FakeModel]:
        numbers = lambda *names: tuple((name, "INT32", (-1,)) for name in names)  # noqa: E731
        texts = lambda *names: tuple((name, "BYTES", (1,)) for name in names)  # noqa: E731
        result = [
            FakeModel("adder", add, numbers("a", "b"), numbers("sum", "diff"), max_batch_size=8),
            FakeModel("text", upper, texts("text_input"), texts("text_output")),
            FakeModel("failer", fail, texts("text_input"), texts("text_output")),
            FakeModel(
                "repeater",
                repeat,
                (*texts("text_input"), ("count", "INT32", (1,)), ("fail_after", "INT32", (1,))),
                texts("text_output"),
                is_decoupled=True,
            ),
            FakeModel(
                "classifier",
                classes,
                (("scores", "FP32", (4,)),),
                (("probabilities", "FP32", (4,)),),
                max_batch_size=8,
                of_output={"probabilities": ("cart", "car", "horse", "locomotive")},
            ),
            FakeModel("sleeper", self.sleeping.append, texts("text_input"), texts("text_output")),
        ]
        result += [
            FakeModel(f"identity_{each.lower()}", echo, (("input", each, (-1,)),), (("output", each, (-1,)),))
            for each in ("BYTES", "FP16", "FP32", "FP64", "BOOL", "UINT8", "INT64", "UINT64", "BF16")
        ]
        return result


def named(call: InferenceCall) -> dict[str, TensorData]:
    return {tensor.name: tensor for tensor in call.request.inputs}


def wanted(call: InferenceCall, *outputs: TensorData) -> InferResponse:
    names = {output.name for output in call.request.outputs}
    return InferResponse(tuple(output for output in outputs if not names or output.name in names))


def add(call: InferenceCall) -> None:
    inputs = named(call)
    a, b = (array("i", bytes(inputs[name].data)) for name in ("a", "b"))  # type: ignore[arg-type]
    shape = inputs["a"].shape
    sums, differences = (array("i", map(op, a, b)).tobytes() for op in (int.__add__, int.__sub__))
    answer = wanted(call, TensorData("sum", "INT32", shape, sums), TensorData("diff", "INT32", shape, differences))
    call.respond(answer, is_final=True)


def upper(call: InferenceCall) -> None:
    """The text in upper case, and behind it the request's parameters as JSON, where it has some."""
    text = text_of(call).upper()
    if call.request.parameters:
        text += f" {json.dumps(dict(call.request.parameters), sort_keys=True)}"
    call.respond(reported(text), is_final=True)


def fail(call: InferenceCall) -> None:
    """Fail the call later, as a model does, and not at once as a check does."""
    later(call, lambda: call.fail(internal(f"asked to fail: {text_of(call)}")))


def repeat(call: InferenceCall) -> None:
    inputs: dict[str, Any] = named(call)
    count = array("i", bytes(inputs["count"].data))[0] if "count" in inputs else 1
    fail_after = array("i", bytes(inputs["fail_after"].data))[0] if "fail_after" in inputs else -1

    def answer(number: int = 0) -> None:
        if call.is_cancelled:
            call.fail_cancelled()
        elif number == fail_after:
            call.respond(InferResponse(error=EngineError(ErrorCode.INTERNAL, f"failed after {number}")), is_final=False)
            call.finish()
        elif number == count:
            call.finish()
        else:
            call.respond(reported(text_of(call)), is_final=False)
            later(call, lambda: answer(number + 1))

    later(call, answer)


def classes(call: InferenceCall) -> None:
    (scores,) = call.request.inputs
    call.respond(InferResponse((TensorData("probabilities", "FP32", scores.shape, scores.data),)), is_final=True)


def echo(call: InferenceCall) -> None:
    (tensor,) = call.request.inputs
    call.respond(InferResponse((TensorData("output", tensor.datatype, tensor.shape, tensor.data),)), is_final=True)


def later(call: InferenceCall, what: Callable[[], None]) -> None:
    import asyncio

    asyncio.get_running_loop().call_soon(what)


def text_of(call: InferenceCall) -> str:
    data = named(call)["text_input"].data
    assert not isinstance(data, SharedMemory)
    return split_elements(data, 1)[0].decode()


def reported(text: str) -> InferResponse:
    return InferResponse((TensorData("text_output", "BYTES", (1,), join_elements([text.encode()])),))
