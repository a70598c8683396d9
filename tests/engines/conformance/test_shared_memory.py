"""A region of shared memory cannot be unregistered while an inference uses it, on Triton and on the host."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as grpc_client
from tritonclient.utils import InferenceServerException, serialize_byte_tensor, shared_memory

from tests.engines.conformance.asking import Server, refusal
from tests.engines.conformance.differences import assert_alike
from tests.engines.conformance.pair import Pair, rest_client
from tests.support.waiting import eventually, released

pytestmark = pytest.mark.triton


WAIT = serialize_byte_tensor(np.array([b"wait"], dtype=np.object_)).item()


def outcome(call: Callable[..., Any], *arguments: Any) -> Any:
    try:
        return call(*arguments)
    except InferenceServerException as error:
        return refusal(error)


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
