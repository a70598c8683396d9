"""Calls of Triton's own HTTP client, each a function from an address to plain values.

A call that changes the server's state restores it, and returns every intermediate result.
"""

import asyncio
import json
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import tritonclient.http as sync_client
import tritonclient.http.aio as aio_client
from tritonclient.utils import InferenceServerException, shared_memory

from tests.conformance.region_codes import without_codes
from tests.support.waiting import eventually, released

Call = Callable[[str], Any]
CALLS: list[Call] = []

NUMBERS = np.array([[1, 2, 3]], dtype=np.int32)


def with_client(function: Callable[[sync_client.InferenceServerClient], Any]) -> Call:
    """Register a call that gets a client for the address; the client is closed afterwards."""

    def call(address: str) -> Any:
        with sync_client.InferenceServerClient(address, concurrency=4) as client:
            return function(client)

    call.__name__ = function.__name__
    CALLS.append(call)
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


# Values


def tensor(name: str, array: np.ndarray, datatype: str, *, binary: bool = True) -> sync_client.InferInput:
    made = sync_client.InferInput(name, list(array.shape), datatype)
    made.set_data_from_numpy(array, binary_data=binary)
    return made


def adder_inputs(*, binary: bool = True) -> list[sync_client.InferInput]:
    return [tensor(name, NUMBERS * factor, "INT32", binary=binary) for name, factor in (("a", 1), ("b", 10))]


def text_inputs(text: bytes) -> list[sync_client.InferInput]:
    return [tensor("text_input", np.array([text], dtype=np.object_), "BYTES")]


def outputs(*names: str, binary: bool = True) -> list[sync_client.InferRequestedOutput]:
    return [sync_client.InferRequestedOutput(name, binary_data=binary) for name in names]


def plain(result: Any) -> tuple[Any, dict[str, Any]]:
    """An inference result as comparable values: its JSON, and its tensors as lists."""
    response = result.get_response()
    return response, {output["name"]: result.as_numpy(output["name"]).tolist() for output in response["outputs"]}


def refusal(function: Callable[..., Any], *args: Any, **options: Any) -> tuple[str | None, str]:
    """The status and message of a refused call; a call that succeeds is a failure."""
    try:
        answer = function(*args, **options)
    except InferenceServerException as error:
        return error.status(), without_codes(error.message().encode()).decode()
    raise AssertionError(f"not refused: {answer}")


def shape_of(value: Any) -> Any:
    """The same value without its numbers, to compare counters and times."""
    match value:
        case dict():
            return {key: shape_of(member) for key, member in value.items()}
        case list():
            return [shape_of(member) for member in value]
        case int() | float() if not isinstance(value, bool):
            return "number"
        case _:
            return value


# Inference


@with_client
def infer_json(client):
    result = client.infer("adder", adder_inputs(binary=False), outputs=outputs("sum", "diff", binary=False))
    assert result.as_numpy("sum").tolist() == [[11, 22, 33]]
    return plain(result)


@with_client
def infer_binary(client):
    result = client.infer("adder", adder_inputs(), outputs=outputs("sum", "diff"))
    assert result.as_numpy("diff").tolist() == [[-9, -18, -27]]
    return plain(result)


@with_client
def infer_mixed_json_and_binary(client):
    inputs = [adder_inputs(binary=True)[0], adder_inputs(binary=False)[1]]
    return plain(client.infer("adder", inputs, outputs=outputs("diff", binary=False) + outputs("sum")))


@with_client
def infer_without_naming_outputs(client):
    return plain(client.infer("adder", adder_inputs()))


@with_client
def infer_a_version(client):
    return plain(client.infer("adder", adder_inputs(), model_version="1"))


@with_client
def infer_gzip_request(client):
    return plain(client.infer("adder", adder_inputs(), request_compression_algorithm="gzip"))


@with_client
def infer_deflate_request(client):
    return plain(client.infer("adder", adder_inputs(binary=False), request_compression_algorithm="deflate"))


@with_client
def infer_gzip_response(client):
    return plain(client.infer("adder", adder_inputs(), response_compression_algorithm="gzip"))


@with_client
def infer_deflate_response(client):
    return plain(client.infer("adder", adder_inputs(binary=False), response_compression_algorithm="deflate"))


@with_client
def infer_compressed_both_ways(client):
    algorithms = {"request_compression_algorithm": "gzip", "response_compression_algorithm": "deflate"}
    return plain(client.infer("adder", adder_inputs(), **algorithms))


@with_client
def infer_bytes(client):
    texts = np.array([b"", b"plain", "zürich".encode(), b"\x00\xff", b"x" * 70_000], dtype=np.object_)
    result = client.infer("identity_bytes", [tensor("INPUT0", texts, "BYTES")])
    assert result.as_numpy("OUTPUT0").tolist() == texts.tolist()
    return plain(result)


@with_client
def infer_bytes_as_json(client):
    texts = np.array([b"", b"plain", 'quote " and ü'.encode()], dtype=np.object_)
    inputs = [tensor("INPUT0", texts, "BYTES", binary=False)]
    return plain(client.infer("identity_bytes", inputs, outputs=outputs("OUTPUT0", binary=False)))


@with_client
def infer_half_precision(client):
    halves = np.array([0.5, -65504.0, np.inf], dtype=np.float16)
    result = client.infer("identity_fp16", [tensor("INPUT0", halves, "FP16")])
    assert result.as_numpy("OUTPUT0").tolist() == halves.tolist()
    return plain(result)


@with_client
def infer_half_precision_as_json_is_refused(client):
    inputs = [tensor("INPUT0", np.ones(2, dtype=np.float16), "FP16")]
    return refusal(client.infer, "identity_fp16", inputs, outputs=outputs("OUTPUT0", binary=False))


@with_client
def infer_four_mebibytes(client):
    numbers = np.arange(1024 * 1024, dtype=np.float32).reshape(1024, 1024)
    result = client.infer("identity_fp32", [tensor("INPUT0", numbers, "FP32")])
    assert np.array_equal(result.as_numpy("OUTPUT0"), numbers)
    return result.get_response()


@with_client
def infer_numbers_as_json(client):
    numbers = np.linspace(-1, 1, 64 * 64, dtype=np.float32).reshape(64, 64)
    inputs = [tensor("INPUT0", numbers, "FP32", binary=False)]
    return plain(client.infer("identity_fp32", inputs, outputs=outputs("OUTPUT0", binary=False)))


@with_client
def infer_nothing(client):
    return plain(client.infer("identity_fp32", [tensor("INPUT0", np.zeros((0, 3), dtype=np.float32), "FP32")]))


@with_client
def infer_classes(client):
    scores = np.array([[0.1, 0.2, 0.3, 0.9], [0.4, 0.3, 0.2, 0.1]], dtype=np.float32)
    wanted = [sync_client.InferRequestedOutput("probabilities", class_count=2)]
    result = client.infer("classifier", [tensor("scores", scores, "FP32")], outputs=wanted)
    assert result.as_numpy("probabilities")[0].tolist() == [b"0.900000:3:locomotive", b"0.300000:2:horse"]
    return plain(result)


@with_client
def infer_with_request_id(client):
    result = client.infer("adder", adder_inputs(), request_id="request 7/ü")
    assert result.get_response()["id"] == "request 7/ü"
    return plain(result)


@with_client
def infer_with_query(client):
    return plain(client.infer("adder", adder_inputs(), query_params={"trace": "yes", "tags": ["a", "b c"]}))


@with_client
def infer_with_parameters(client):
    result = client.infer("text", text_inputs(b"x"), parameters={"temperature": 0.5, "n": 3, "user": "ü", "fast": True})
    assert b'"temperature": 0.5' in result.as_numpy("text_output")[0]
    return plain(result)


@with_client
def infer_with_headers(client):
    result = client.infer("text", text_inputs(b"x"), headers={"x-forward-tenant": "acme", "X-Unrelated": "1"})
    assert b'"x-forward-tenant": "acme"' in result.as_numpy("text_output")[0]
    return plain(result)


@with_client
def infer_with_priority_and_timeout(client):
    return plain(client.infer("adder", adder_inputs(), priority=1, timeout=5_000_000))


@with_client
def infer_many_at_once(client):
    handles = [client.async_infer("adder", adder_inputs(), request_id=str(number)) for number in range(8)]
    return [plain(handle.get_result()) for handle in handles]


@with_client
def infer_refusals(client):
    wrong_shape = [tensor(name, np.ones((1, 2, 2), dtype=np.int32), "INT32") for name in "ab"]
    wrong_datatype = [tensor(name, np.ones((1, 2), dtype=np.float32), "FP32") for name in "ab"]
    return [
        refusal(client.infer, "nope", adder_inputs()),
        refusal(client.infer, "adder", adder_inputs(), model_version="9"),
        refusal(client.infer, "adder", wrong_shape),
        refusal(client.infer, "adder", wrong_datatype),
        refusal(client.infer, "adder", adder_inputs(), outputs=outputs("nope")),
        refusal(client.infer, "failer", text_inputs(b"boom")),
        refusal(client.infer, "repeater", text_inputs(b"x")),
    ]


@with_aio_client
async def aio_infer(client):
    results = [
        await client.infer("adder", adder_inputs()),
        await client.infer("adder", adder_inputs(binary=False), outputs=outputs("sum", binary=False)),
        await client.infer("adder", adder_inputs(), request_compression_algorithm="gzip"),
        await client.infer("adder", adder_inputs(), response_compression_algorithm="deflate"),
    ]
    return [plain(result) for result in results]


@with_aio_client
async def aio_infer_many_at_once(client):
    requests = [client.infer("adder", adder_inputs(), request_id=str(number)) for number in range(20)]
    return [plain(result) for result in await asyncio.gather(*requests)]


@with_aio_client
async def aio_server_and_models(client):
    return [
        await client.is_server_live(),
        await client.is_server_ready(),
        await client.is_model_ready("adder"),
        await client.is_model_ready("nope"),
        await client.get_model_metadata("adder"),
        await client.get_model_config("adder"),
        await client.get_log_settings(),
    ]


# Sequences


@with_client
def sequence(client):
    totals = run_sequence(client, 1001, [5, 7, -2])
    assert totals == [5, 12, 10]
    return totals


@with_client
def sequence_named_by_text(client):
    totals = run_sequence(client, "call-1", [5, 7, -2])
    assert totals == [5, 12, 10]
    return totals


@with_client
def sequences_interleaved(client):
    steps = [(1002, 1, True, False), (1003, 10, True, False), (1002, 2, False, False), (1003, 20, False, True)]
    steps += [(1002, 3, False, True)]
    return [step_sequence(client, *step) for step in steps]


@with_client
def sequence_started_anew(client):
    return run_sequence(client, 1004, [1, 2]) + run_sequence(client, 1004, [10, 20])


@with_client
def sequence_without_a_start(client):
    return refusal(step_sequence, client, 1005, 1, False, False)


def run_sequence(client: sync_client.InferenceServerClient, name: int | str, values: list[int]) -> list[int]:
    last = len(values) - 1
    return [step_sequence(client, name, value, index == 0, index == last) for index, value in enumerate(values)]


def step_sequence(
    client: sync_client.InferenceServerClient, name: int | str, value: int, start: bool, end: bool
) -> int:
    inputs = [tensor("value", np.array([[value]], dtype=np.int32), "INT32")]
    result = client.infer("accumulator", inputs, sequence_id=name, sequence_start=start, sequence_end=end)
    return int(result.as_numpy("total").item())


# Server and models


@with_client
def server_and_models(client):
    return [
        client.is_server_live(),
        client.is_server_ready(),
        client.is_model_ready("adder"),
        client.is_model_ready("adder", "1"),
        client.is_model_ready("adder", "9"),
        client.is_model_ready("nope"),
        client.get_model_metadata("accumulator"),
        client.get_model_metadata("adder", "1"),
        client.get_model_config("accumulator"),
        client.get_model_config("adder", "1"),
        refusal(client.get_model_metadata, "nope"),
        refusal(client.get_model_config, "nope"),
    ]


@with_client
def statistics_of_a_model(client):
    return shape_of(client.get_inference_statistics("adder"))


@with_client
def statistics_of_a_version(client):
    return shape_of(client.get_inference_statistics("adder", "1"))


@with_client
def statistics_of_all(client):
    return shape_of(client.get_inference_statistics())


# Model control


def unload_half_precision(client: sync_client.InferenceServerClient) -> None:
    client.unload_model("identity_fp16")
    while index(client)["identity_fp16", "1"][0] == "UNLOADING":
        time.sleep(0.01)  # Triton answers the unload before its end


@with_client
def unload_and_load(client):
    unload_half_precision(client)
    # Wait: a server is not ready during an unload, which a gateway's probe may have seen.
    eventually(client.is_server_ready)
    seen = [
        client.is_model_ready("identity_fp16"),
        client.is_server_ready(),
        index(client)["identity_fp16", "1"],
        refusal(client.get_model_metadata, "identity_fp16"),
    ]
    client.load_model("identity_fp16")
    seen += [client.is_model_ready("identity_fp16"), index(client)["identity_fp16", "1"]]
    assert seen[0] is False and seen[-2] is True
    return seen


@with_client
def load_with_another_config(client):
    config = client.get_model_config("identity_fp16")
    changed = {**config, "input": [{**config["input"][0], "dims": [4]}]}
    client.load_model("identity_fp16", config=json.dumps(changed))
    seen = [client.get_model_metadata("identity_fp16")]
    client.load_model("identity_fp16")
    seen.append(client.get_model_metadata("identity_fp16"))
    assert seen[0]["inputs"][0]["shape"] == [4]
    unload_half_precision(client)  # a load alone keeps the configuration
    client.load_model("identity_fp16")
    assert client.get_model_metadata("identity_fp16")["inputs"][0]["shape"] == [-1]
    return seen


@with_client
def load_with_files(client):
    """Load a model whose configuration and files are all in the request."""
    config = {"backend": "python", "max_batch_size": 0}
    config |= {"input": [{"name": "INPUT0", "data_type": "TYPE_FP32", "dims": [1]}]}
    config |= {"output": [{"name": "OUTPUT0", "data_type": "TYPE_FP32", "dims": [1]}]}
    config |= {"instance_group": [{"kind": "KIND_CPU", "count": 1}]}
    client.load_model("visitor", config=json.dumps(config), files={"file:1/model.py": VISITOR})
    seen = plain(client.infer("visitor", [tensor("INPUT0", np.array([2.0], dtype=np.float32), "FP32")]))
    client.unload_model("visitor")
    return seen, client.is_model_ready("visitor")


VISITOR = b"""
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        arrays = [pb_utils.get_input_tensor_by_name(request, "INPUT0").as_numpy() for request in requests]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", array * 2)]) for array in arrays]
"""


@with_client
def model_control_refusals(client):
    client.unload_model("nope")  # which Triton accepts
    return [refusal(client.load_model, "nope"), refusal(client.load_model, "text", config="{")]


@with_client
def repository_index(client):
    seen = index(client)
    assert seen["adder", "1"] == ("READY", None)
    return seen


def index(client: sync_client.InferenceServerClient) -> dict[tuple[str, str], tuple[str, str | None]]:
    """The index by model and version. The gateway may add entries, for instance the engine of each model."""
    models = client.get_model_repository_index()
    return {(model["name"], model["version"]): (model["state"], model.get("reason")) for model in models}


# Shared memory


@with_client
def shared_memory_round_trip(client):
    """Inputs and outputs are in a region that client and server share; requests carry only its name."""
    size = NUMBERS.nbytes
    region = shared_memory.create_shared_memory_region("parity", "/pointsman_parity", 3 * size)
    try:
        shared_memory.set_shared_memory_region(region, [NUMBERS, NUMBERS * 10])
        client.register_system_shared_memory("parity", "/pointsman_parity", 3 * size)
        seen = [
            client.get_system_shared_memory_status(),
            client.get_system_shared_memory_status("parity"),
            refusal(client.register_system_shared_memory, "parity", "/pointsman_parity", 3 * size),
        ]
        inputs = [sync_client.InferInput(name, list(NUMBERS.shape), "INT32") for name in "ab"]
        for number, given in enumerate(inputs):
            given.set_shared_memory("parity", size, offset=number * size)
        wanted = sync_client.InferRequestedOutput("sum")
        wanted.set_shared_memory("parity", size, offset=2 * size)
        result = client.infer("adder", inputs, outputs=[wanted])
        answer = shared_memory.get_contents_as_numpy(region, np.int32, list(NUMBERS.shape), offset=2 * size)
        assert answer.tolist() == [[11, 22, 33]]
        eventually(lambda: released(lambda: client.unregister_system_shared_memory("parity")))
        return [*seen, result.get_response(), answer.tolist(), client.get_system_shared_memory_status()]
    finally:
        client.unregister_system_shared_memory()
        shared_memory.destroy_shared_memory_region(region)


@with_client
def shared_memory_bounds(client):
    """Regions and tensors that do not lie within an object or a region."""
    region = shared_memory.create_shared_memory_region("bounds", "/pointsman_bounds", 64)
    try:
        client.unregister_system_shared_memory("bounds")  # no error before it is registered
        seen = [
            refusal(client.register_system_shared_memory, "bounds", "/pointsman_bounds", 65),
            refusal(client.register_system_shared_memory, "bounds", "/pointsman_bounds", 1, offset=64),
        ]
        client.register_system_shared_memory("bounds", "/pointsman_bounds", 64)
        seen.append(refusal(client.register_system_shared_memory, "bounds", "/pointsman_bounds", 64))
        for offset, size in ((64, 12), (1 << 40, 12), (60, 12), (0, 72), (0, 8)):
            inputs = adder_inputs()
            inputs[0].set_shared_memory("bounds", size, offset=offset)
            seen.append(refusal(client.infer, "adder", inputs))
        return seen
    finally:
        eventually(lambda: released(client.unregister_system_shared_memory))
        shared_memory.destroy_shared_memory_region(region)


@with_client
def shared_memory_refusals(client):
    return [
        refusal(client.register_system_shared_memory, "parity", "/pointsman_nowhere", 64),
        refusal(client.get_system_shared_memory_status, "parity"),
        client.get_cuda_shared_memory_status(),
    ]


# Settings


@with_client
def trace_settings(client):
    seen = [client.get_trace_settings(), client.update_trace_settings(settings={"trace_rate": "500"})]
    seen += [client.update_trace_settings("text", {"trace_rate": "7"}), client.get_trace_settings("text")]
    assert seen[-1]["trace_rate"] == "7"
    seen += [client.update_trace_settings("text", {"trace_rate": None})]
    seen += [client.update_trace_settings(settings={"trace_rate": None})]
    return seen


@with_client
def log_settings(client):
    seen = [client.get_log_settings(), client.update_log_settings({"log_info": False, "log_format": "ISO8601"})]
    assert seen[-1]["log_info"] is False
    return [*seen, client.update_log_settings({"log_info": True, "log_format": "default"})]
