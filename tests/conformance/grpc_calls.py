"""gRPC calls, each a function from an address to plain values.

A call that changes the server's state restores it, and returns every intermediate result.
"""

import asyncio
import json
import os
import queue
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import grpc
import numpy as np
import tritonclient.grpc as sync_client
import tritonclient.grpc.aio as aio_client
from tritonclient.grpc import service_pb2, service_pb2_grpc
from tritonclient.utils import InferenceServerException, shared_memory

from tests.support.waiting import eventually, released

Call = Callable[[str], Any]
CALLS: list[Call] = []
STREAM_CALLS: list[Call] = []

KEY = f"/grpc_parity_{os.getpid()}"  # of shared memory, unique among runs on one machine
NUMBERS = np.array([[1, 2, 3]], dtype=np.int32)


def with_client(function: Callable[[sync_client.InferenceServerClient], Any], calls: list[Call] = CALLS) -> Call:
    """Register a call that gets a client for the address; the client is closed afterwards."""

    def call(address: str) -> Any:
        with sync_client.InferenceServerClient(address) as client:
            return function(client)

    call.__name__ = function.__name__
    calls.append(call)
    return call


def with_aio_client(function: Callable[[aio_client.InferenceServerClient], Any]) -> Call:
    """The same for the asyncio client."""

    def call(address: str) -> Any:
        async def run() -> Any:
            async with aio_client.InferenceServerClient(address) as client:
                return await function(client)

        return asyncio.run(run())

    call.__name__ = function.__name__
    CALLS.append(call)
    return call


def with_stub(function: Callable[[service_pb2_grpc.GRPCInferenceServiceStub], Any]) -> Call:
    """The same for the generated stub, for requests that the client library does not allow."""

    def call(address: str) -> Any:
        with grpc.insecure_channel(address, options=[("grpc.max_receive_message_length", -1)]) as channel:
            return function(service_pb2_grpc.GRPCInferenceServiceStub(channel))

    call.__name__ = function.__name__
    CALLS.append(call)
    return call


streaming = partial(with_client, calls=STREAM_CALLS)


# Values


def tensor(name: str, array: np.ndarray, datatype: str) -> sync_client.InferInput:
    made = sync_client.InferInput(name, list(array.shape), datatype)
    made.set_data_from_numpy(array)
    return made


def adder_inputs(factor: int = 1) -> list[sync_client.InferInput]:
    return [tensor(name, NUMBERS * scale * factor, "INT32") for name, scale in (("a", 1), ("b", 10))]


def text_inputs(text: str, **numbers: float) -> list[sync_client.InferInput]:
    """The repeater's inputs: its text, and parameters of its answer."""
    inputs = [tensor("text_input", np.array([text.encode()], dtype=np.object_), "BYTES")]
    for name, value in numbers.items():
        kind = np.float32 if name.endswith("seconds") else np.int32
        inputs.append(tensor(name, np.array([value], dtype=kind), "FP32" if kind is np.float32 else "INT32"))
    return inputs


def plain(result: Any) -> Any:
    """Every field of a response, as text."""
    return str(result.get_response() if hasattr(result, "get_response") else result)


def refusal(function: Callable[..., Any], *args: Any, **options: Any) -> tuple[str | None, str]:
    """The status and message of a refused call; a call that succeeds is a failure."""
    try:
        answer = function(*args, **options)
    except InferenceServerException as error:
        return error.status(), error.message()
    except grpc.RpcError as error:
        return str(error.code()), error.details()
    raise AssertionError(f"not refused: {answer}")


# Unary calls


@with_client
def infer(client):
    result = client.infer("adder", adder_inputs(), request_id="seven")
    assert result.as_numpy("sum").tolist() == [[11, 22, 33]]
    return plain(result)


@with_client
def infer_a_version(client):
    return plain(client.infer("adder", adder_inputs(), model_version="1"))


@with_client
def infer_one_output(client):
    return plain(client.infer("adder", adder_inputs(), outputs=[sync_client.InferRequestedOutput("diff")]))


@with_client
def infer_classes(client):
    scores = tensor("scores", np.array([[0.1, 0.5, 0.2, 0.2]], dtype=np.float32), "FP32")
    wanted = [sync_client.InferRequestedOutput("probabilities", class_count=2)]
    return plain(client.infer("classifier", [scores], outputs=wanted))


@with_client
def infer_parameters(client):
    parameters = {"text": "value", "number": 3, "flag": True}
    return plain(client.infer("adder", adder_inputs(), parameters=parameters, priority=1, timeout=5_000_000))


# Blanks around metadata reach the model.
BLANKS = {"x-forward-a": 'a "quoted" text with a backslash\\ ', "x-forward-b": "  b", "other": " "}


@with_client
def metadata_with_blanks(client):
    result = client.infer("text", text_inputs("x"), headers=BLANKS)
    assert b"backslash\\\\ " in result.as_numpy("text_output")[0]
    return [plain(result), client.is_model_ready("adder", headers={"x-a": "a "}), client.is_server_live(headers=BLANKS)]


@with_client
def infer_gzip(client):
    return plain(client.infer("adder", adder_inputs(), compression_algorithm="gzip"))


@with_client
def infer_deflate(client):
    return plain(client.infer("adder", adder_inputs(), compression_algorithm="deflate"))


@with_client
def infer_with_deadline(client):
    return plain(client.infer("adder", adder_inputs(), client_timeout=120))


@with_client
def deadline_passes(client):
    slow = [tensor("seconds", np.array([0.5], dtype=np.float32), "FP32")]
    return refusal(client.infer, "sleeper", slow, client_timeout=0.1)[0]


@with_client
def large_tensor(client):
    """Send three times the four mebibytes that gRPC servers accept by default."""
    data = np.arange(3 * 1024 * 1024, dtype=np.float32).reshape(1, -1)
    result = client.infer("identity_fp32", [tensor("INPUT0", data, "FP32")])
    assert np.array_equal(result.as_numpy("OUTPUT0"), data)
    return len(plain(result))


@with_client
def callback(client):
    answers = queue.SimpleQueue()
    client.async_infer("adder", adder_inputs(), lambda result, error: answers.put((result, error)))
    result, error = answers.get(timeout=120)
    assert error is None
    return plain(result)


@with_client
def refusals(client):
    return [
        refusal(client.infer, "nobody", adder_inputs()),
        refusal(client.infer, "adder", adder_inputs(), model_version="9"),
        refusal(client.infer, "adder", adder_inputs()[:1]),
        refusal(client.infer, "failer", text_inputs("please")),
        refusal(client.infer, "repeater", text_inputs("decoupled")),
        refusal(client.infer, "adder", [tensor(name, NUMBERS[:, :1], "INT32") for name in "ab"], model_version="x"),
        refusal(client.infer, "repeater", adder_inputs()),
        refusal(client.infer, "identity_fp32", [tensor("INPUT0", np.zeros(1, dtype=np.float32), "FP32")]),
        refusal(client.get_model_metadata, "nobody"),
        refusal(client.get_model_config, "nobody"),
    ]


@with_client
def model_control_plane(client):
    return [
        client.is_server_live(),
        client.is_server_ready(),
        client.is_model_ready("adder"),
        client.is_model_ready("adder", "1"),
        client.is_model_ready("nobody"),
        plain(client.get_model_metadata("adder")),
        plain(client.get_model_config("adder")),
    ]


@with_client
def versions_and_unknown_models(client):
    return [
        client.is_model_ready("adder", "9"),
        plain(client.get_model_metadata("adder", "1")),
        refusal(client.get_model_metadata, "adder", "9"),
        refusal(client.get_inference_statistics, "nobody"),
        refusal(client.get_model_config, "adder", "9"),
    ]


@with_client
def statistics(client):
    """The statistics, without values that change between calls."""
    one = client.get_inference_statistics("adder", as_json=True)["model_stats"]
    every = client.get_inference_statistics(as_json=True)["model_stats"]
    return [sorted(stat) for stat in one], sorted((stat["name"], stat["version"]) for stat in every)


@with_client
def repository(client):
    index = client.get_model_repository_index()
    before = sorted((model.name, model.version, model.state) for model in index.models)
    client.unload_model("text")
    during = client.is_model_ready("text"), refusal(client.infer, "text", text_inputs("gone"))
    client.load_model("text")
    return before, during, client.is_model_ready("text"), refusal(client.load_model, "nobody")


@with_client
def load_with_a_configuration(client):
    config = client.get_model_config("text", as_json=True)["config"]
    client.load_model("text", config=json.dumps({**config, "max_batch_size": 2}))
    changed = client.get_model_config("text", as_json=True)["config"].get("max_batch_size")
    client.unload_model("text")
    client.load_model("text")
    return changed, client.get_model_config("text", as_json=True)["config"].get("max_batch_size")


@with_client
def trace_settings(client):
    before = plain(client.get_trace_settings())
    changed = plain(client.update_trace_settings(settings={"trace_rate": "500"}))
    of_model = plain(client.update_trace_settings("adder", {"trace_count": "7"}))
    cleared = plain(client.update_trace_settings("adder", {"trace_count": None}))
    return before, changed, of_model, cleared, plain(client.update_trace_settings(settings={"trace_rate": "1000"}))


@with_client
def log_settings(client):
    before = plain(client.get_log_settings())
    changed = plain(client.update_log_settings({"log_verbose_level": 1, "log_warning": False}))
    client.update_log_settings({"log_verbose_level": 0, "log_warning": True})
    return before, changed, plain(client.get_log_settings())


@with_client
def shared_memory_infer(client):
    """Send and return a tensor through a region that the engine maps."""
    size = NUMBERS.nbytes
    region = shared_memory.create_shared_memory_region("grpc_parity", KEY, size * 3)
    try:
        shared_memory.set_shared_memory_region(region, [NUMBERS, NUMBERS * 10])
        client.register_system_shared_memory("grpc_parity", KEY, size * 3)
        status = plain(client.get_system_shared_memory_status())
        inputs = [sync_client.InferInput(name, [1, 3], "INT32") for name in ("a", "b")]
        inputs[0].set_shared_memory("grpc_parity", size)
        inputs[1].set_shared_memory("grpc_parity", size, size)
        wanted = sync_client.InferRequestedOutput("sum")
        wanted.set_shared_memory("grpc_parity", size, size * 2)
        answer = plain(client.infer("adder", inputs, outputs=[wanted]))
        total = shared_memory.get_contents_as_numpy(region, np.int32, [1, 3], size * 2)
        eventually(lambda: released(lambda: client.unregister_system_shared_memory("grpc_parity")))
        return status, answer, total.tolist(), plain(client.get_system_shared_memory_status())
    finally:
        client.unregister_system_shared_memory()
        shared_memory.destroy_shared_memory_region(region)


@with_client
def cuda_shared_memory_status(client):
    try:
        return plain(client.get_cuda_shared_memory_status())
    except InferenceServerException as error:
        return error.status(), error.message()


@with_aio_client
async def aio_infer(client):
    results = await asyncio.gather(*[client.infer("adder", adder_inputs(factor)) for factor in range(20)])
    assert [result.as_numpy("sum").tolist()[0][0] for result in results] == [11 * factor for factor in range(20)]
    return [plain(result) for result in results]


@with_aio_client
async def aio_stream(client):
    async def requests():
        for number in range(5):
            yield {"model_name": "adder", "inputs": adder_inputs(number), "request_id": str(number)}
        yield {"model_name": "nobody", "inputs": adder_inputs(), "request_id": "nobody"}

    return [told(result, error) async for result, error in client.stream_infer(requests())]


@with_stub
def typed_contents(stub):
    """Send numbers in protobuf's typed fields instead of raw bytes."""
    request = service_pb2.ModelInferRequest(model_name="adder")
    for name, values in (("a", [1, 2, 3]), ("b", [10, 20, 30])):
        made = request.inputs.add(name=name, datatype="INT32", shape=[1, 3])
        made.contents.int_contents.extend(values)
    return str(stub.ModelInfer(request))


@with_stub
def metadata_both_ways(stub):
    """The server's metadata reaches the client, and the client's reaches the model."""
    request = service_pb2.ModelReadyRequest(name="adder")
    answer, call = stub.ModelReady.with_call(request, metadata=[("x-any", "1"), ("x-any-bin", b"\0\1")])
    known = {key for key, _ in call.initial_metadata()} - {"x-request-id", "x-pointsman-route", "x-pointsman-engine"}
    return answer.ready, known, call.code()


# Streams


def conversation(client: sync_client.InferenceServerClient, num_answers: int, **options: Any) -> Any:
    """Start a stream. Returns one function that sends and one that waits for the answers."""
    answers: queue.SimpleQueue[tuple[Any, Any]] = queue.SimpleQueue()
    client.start_stream(lambda result, error: answers.put((result, error)), **options)

    def wait() -> list[Any]:
        try:
            return [told(*answers.get(timeout=120)) for _ in range(num_answers)]
        finally:
            client.stop_stream()

    return wait


def told(result: Any, error: InferenceServerException | None) -> Any:
    return plain(result) if error is None else (error.status(), error.message())


@streaming
def stream_of_one_model(client):
    wait = conversation(client, 30)
    for number in range(30):
        client.async_stream_infer("adder", adder_inputs(number), request_id=str(number))
    return wait()


@streaming
def stream_of_a_decoupled_model(client):
    wait = conversation(client, 9)
    for number in range(3):
        client.async_stream_infer("repeater", text_inputs(f"text {number}", count=3), request_id=str(number))
    return sorted(wait())  # Triton's threads determine the order of the requests


@streaming
def stream_with_empty_final_responses(client):
    wait = conversation(client, 3)
    inputs = text_inputs("text", count=2)
    client.async_stream_infer("repeater", inputs, request_id="a", enable_empty_final_response=True)
    return wait()


@streaming
def stream_of_sequences(client):
    """Two sequences take turns on one stream, one by a number and one by a text."""
    wait = conversation(client, 12)
    for step in range(6):
        for sequence in (7, "eight"):
            value = tensor("value", np.array([[step + len(str(sequence))]], dtype=np.int32), "INT32")
            client.async_stream_infer(
                "accumulator",
                [value],
                request_id=f"{sequence}-{step}",
                sequence_id=sequence,
                sequence_start=step == 0,
                sequence_end=step == 5,
            )
    return sorted(wait())


@streaming
def stream_of_several_models(client):
    """Models with one response per request answer in the order of the requests, slow ones included."""
    wait = conversation(client, 6)
    slow = [tensor("seconds", np.array([0.2], dtype=np.float32), "FP32")]
    client.async_stream_infer("adder", adder_inputs(), request_id="1")
    client.async_stream_infer("sleeper", slow, request_id="2")
    client.async_stream_infer("adder", adder_inputs(2), request_id="3")
    client.async_stream_infer("adder", adder_inputs(3), request_id="4", model_version="1")
    client.async_stream_infer("sleeper", slow, request_id="5")
    client.async_stream_infer("adder", adder_inputs(4), request_id="6")
    return wait()


@streaming
def stream_with_errors(client):
    """A request that fails is answered in order, and the stream continues."""
    wait = conversation(client, 5)
    client.async_stream_infer("adder", adder_inputs(), request_id="1")
    client.async_stream_infer("nobody", adder_inputs(), request_id="2")
    client.async_stream_infer("adder", adder_inputs()[:1], request_id="3")
    client.async_stream_infer("failer", text_inputs("on a stream"), request_id="4")
    client.async_stream_infer("adder", adder_inputs(5), request_id="5")
    return wait()


@streaming
def stream_with_an_error_in_its_turn(client):
    """A request for an unknown model is refused after the answer of the slow one before it."""
    wait = conversation(client, 3)
    slow = [tensor("seconds", np.array([0.2], dtype=np.float32), "FP32")]
    client.async_stream_infer("sleeper", slow, request_id="1")
    client.async_stream_infer("nobody", adder_inputs(), request_id="2")
    client.async_stream_infer("adder", adder_inputs(), request_id="3")
    return wait()


@streaming
def stream_of_compressed_messages(client):
    wait = conversation(client, 2, compression_algorithm="gzip")
    client.async_stream_infer("adder", adder_inputs(), request_id="1")
    client.async_stream_infer("adder", adder_inputs(2), request_id="2")
    return wait()


@streaming
def stream_of_large_tensors(client):
    wait = conversation(client, 3)
    for number in range(3):
        data = np.full((1, 2 * 1024 * 1024), number, dtype=np.float32)
        client.async_stream_infer("identity_fp32", [tensor("INPUT0", data, "FP32")], request_id=str(number))
    return [len(answer) for answer in wait()]


def stream(address: str, requests: Sequence[Any], **options: Any) -> tuple[list[Any], Any, str]:
    """Send requests on a stream by the stub, end it, and read to its end."""
    with grpc.insecure_channel(address) as channel:
        call = service_pb2_grpc.GRPCInferenceServiceStub(channel).ModelStreamInfer(
            iter(requests), timeout=120, **options
        )
        try:
            answers = [str(answer) for answer in call]
        except grpc.RpcError:
            answers = []
        return answers, call.code(), call.details()


def message(model: str, **fields: Any) -> service_pb2.ModelInferRequest:
    """A request in the adder's format, for any model."""
    request = service_pb2.ModelInferRequest(model_name=model, **fields)
    for name, values in (("a", [1, 2, 3]), ("b", [10, 20, 30])):
        made = request.inputs.add(name=name, datatype="INT32", shape=[1, 3])
        made.contents.int_contents.extend(values)
    return request


def stream_without_messages(address: str) -> Any:
    return stream(address, [])


def stream_that_ends(address: str) -> Any:
    return stream(address, [message("adder", id="1"), message("adder", id="2")])


def stream_that_asks_for_status_errors(address: str) -> Any:
    """`triton_grpc_error`: an error ends the stream with its status."""
    requests = [message("adder", id="1"), message("nobody", id="2")]
    return stream(address, requests, metadata=[("triton_grpc_error", "true")])[1:]


def stream_of_a_broken_message(address: str) -> Any:
    request = message("adder", id="1")
    del request.inputs[1]
    return stream(address, [request])


STREAM_CALLS += [
    stream_without_messages,
    stream_that_ends,
    stream_that_asks_for_status_errors,
    stream_of_a_broken_message,
]
