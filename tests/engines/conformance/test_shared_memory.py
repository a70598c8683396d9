"""A region of shared memory cannot be unregistered while an inference uses it, on Triton and on the host."""

from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as grpc_client
import tritonclient.http as http_client
from tritonclient.utils import serialize_byte_tensor, shared_memory

from tests.engines.conformance.asking import Server, outcome
from tests.engines.conformance.differences import assert_alike
from tests.engines.conformance.pair import Pair, rest_client
from tests.support.waiting import eventually, released

pytestmark = pytest.mark.triton


WAIT = serialize_byte_tensor(np.array([b"wait"], dtype=np.object_)).item()


def test_a_region_in_use_stays(pair: Pair) -> None:
    """While a model works on a region both refuse to unregister it, over REST and gRPC, alone and with all others."""
    pair.load(["patient"])

    def call(server: Server) -> list[Any]:
        # Two objects: Triton opens one only once, and then uses its closed descriptor.
        keys = {name: f"/pointsman_{name}_{server.http_port}" for name in ("used", "free")}
        regions = {name: shared_memory.create_shared_memory_region(name, key, 64) for name, key in keys.items()}
        address = f"127.0.0.1:{server.grpc_port}"
        try:
            with rest_client(server) as rest, grpc_client.InferenceServerClient(address) as grpc:
                shared_memory.set_shared_memory_region(regions["used"], [np.frombuffer(WAIT, np.uint8)])
                for name, key in keys.items():
                    rest.register_system_shared_memory(name, key, 64)
                waiting = grpc_client.InferInput("ask", [1], "BYTES")
                waiting.set_shared_memory("used", len(WAIT))
                seen: list[Any] = []
                grpc.start_stream(lambda result, error: seen.append(error or result.as_numpy("told").tolist()))
                grpc.async_stream_infer("patient", [waiting])
                eventually(lambda: seen)
                refused = [
                    outcome(client.unregister_system_shared_memory, name)
                    for client in (rest, grpc)
                    for name in ("used", "")
                ]
                left = rest.get_system_shared_memory_status()
                grpc.stop_stream(cancel_requests=True)
                eventually(lambda: released(lambda: grpc.unregister_system_shared_memory("used")))
                return [seen[0], refused, [entry["name"] for entry in left], rest.get_system_shared_memory_status()]
        finally:
            with rest_client(server) as rest:
                eventually(lambda: released(rest.unregister_system_shared_memory))
            for region in regions.values():
                shared_memory.destroy_shared_memory_region(region)

    triton, host = pair.ask(call)
    assert [each["refused"] for each in triton[1]] == ["500", "500", "StatusCode.INTERNAL", "StatusCode.INTERNAL"]
    assert_alike("shared memory in use", triton, host)


# Registrations: name, key without the server's port, offset, bytes. The object has 64 bytes.
REGISTRATIONS = {
    "nothing named": ("", "", 0, 0),
    "no such object": ("r", "/pointsman_nowhere", 0, 64),
    "no object": ("r", "", 0, 64),
    "larger than the object": ("r", "object", 0, 65),
    "beyond the object": ("r", "object", 65, 1),
    "a page": ("r", "object", 0, 64),
    "twice": ("again", "object", 0, 64),
}
# Where an input of 8 bytes lies in a region of 64: its offset and size.
PLACES = {
    "the end": (56, 8),
    "offset at the end": (64, 8),
    "offset beyond the end": (1 << 40, 8),
    "size beyond the end": (60, 8),
    "size beyond the region": (0, 72),
    "size of another shape": (0, 4),
    "more than the shape": (0, 16),
}


@pytest.mark.parametrize("front", ["rest", "grpc"])
def test_places_in_regions(front: str, pair: Pair) -> None:
    """Registrations and places of tensors have Triton's limits and texts; one input may be in the request."""
    pair.load(["adder"])

    def call(server: Server) -> dict[str, Any]:
        key = f"/pointsman_places_{server.http_port}"
        library: Any = http_client if front == "rest" else grpc_client
        port = server.http_port if front == "rest" else server.grpc_port
        memory = shared_memory.create_shared_memory_region("places", key, 64)
        numbers = np.array([[1, 2]], np.int32)
        try:
            with library.InferenceServerClient(f"127.0.0.1:{port}") as client:
                seen: dict[str, Any] = {"unregistered before": outcome(client.unregister_system_shared_memory, "r")}
                for name, (region, object_key, offset, size) in REGISTRATIONS.items():
                    where = key if object_key == "object" else object_key
                    answer = outcome(client.register_system_shared_memory, region, where, size, offset=offset)
                    if name == "twice":
                        seen[name] = outcome(client.register_system_shared_memory, "r", key, 64)
                    else:
                        seen[name] = answer
                shared_memory.set_shared_memory_region(memory, [numbers, numbers, numbers, numbers])
                for name, (offset, size) in PLACES.items():
                    inputs = [library.InferInput(each, [1, 2], "INT32") for each in "ab"]
                    inputs[0].set_shared_memory("r", size, offset=offset)
                    inputs[1].set_data_from_numpy(numbers)
                    answer = outcome(client.infer, "adder", inputs)
                    seen[name] = answer if isinstance(answer, dict) else answer.as_numpy("sum").shape
                for size in (4, 8, 16):
                    inputs = [library.InferInput(each, [1, 2], "INT32") for each in "ab"]
                    for each in inputs:
                        each.set_data_from_numpy(numbers)
                    wanted = library.InferRequestedOutput("sum")
                    wanted.set_shared_memory("r", size, offset=32)
                    answer = outcome(client.infer, "adder", inputs, outputs=[wanted])
                    result = shared_memory.get_contents_as_numpy(memory, np.int32, [1, 2], offset=32).tolist()
                    seen[f"output of {size}"] = answer if isinstance(answer, dict) else result
                eventually(lambda: released(client.unregister_system_shared_memory))
                return {name: str(answer).replace(key, "KEY") for name, answer in seen.items()}
        finally:
            shared_memory.destroy_shared_memory_region(memory)

    assert_alike(f"places in shared memory: {front}", *pair.ask(call))
