"""Names of shared memory regions at engines."""

import json
import tracemalloc

import pytest

from gateway.protocol import protobuf
from gateway.protocol.errors import ErrorKind, GatewayError
from gateway.protocol.json_bounds import JsonBounds
from gateway.protocol.region_names import RegionNames

NAMES = RegionNames(b"secret")


@pytest.mark.parametrize("name", ["r", "a.b", "ü", 'quote"', "x" * 300])
def test_a_name_is_of_one_owner_and_one_secret(name: str) -> None:
    """The owner's name is found again; of another owner, or by another secret, the region is not his."""
    at_engine = name + NAMES.code("alice", name)
    assert NAMES.of_client("alice", at_engine) == name
    assert NAMES.of_client("mallory", at_engine) is None
    assert RegionNames(b"other").of_client("alice", at_engine) is None


@pytest.mark.parametrize("name", ["", "r", ".0", "." + "0" * 32, "r." + "0" * 32])
def test_names_without_the_code_are_nobodys(name: str) -> None:
    """A region that was registered with the engine itself belongs to no client."""
    assert NAMES.of_client("alice", name) is None


def test_inferences_name_what_is_at_the_engine() -> None:
    """JSON keeps all bytes but the names; a text that quotes the parameter is no parameter."""
    code = NAMES.code("alice", 'a"b')
    parameters = '{"shared_memory_region" : "a\\"b", "shared_memory_byte_size": 1.50}'
    text = '{"inputs":[{"parameters":%s,"data":["\\"shared_memory_region\\": \\"x\\""]}]}'
    assert NAMES.rename_in_json("alice", (text % parameters).encode()).decode() == text % parameters.replace(
        'b"', f'b{code}"', 1
    )
    untouched = b'{"inputs":[]}'
    assert NAMES.rename_in_json("alice", untouched) is untouched


@pytest.mark.parametrize(
    "text",
    [
        '{"shared_memory_region":"victim","shared_memory_region":"mine"}',
        '{"shared_memory_region":"mine","shared_memory_region":"victim"}',
        '{"shared\\u005fmemory_region":"victim.code","x":"shared_memory_region"}',
        '{"shared_memory_region":"v\\u0069ctim"}',
        '{"shared_memory_region":"victim.code"}',
    ],
)
def test_unusual_json_names_no_others_region(text: str) -> None:
    """However a parameter is written, it does not become the name of another's region."""
    real = "victim" + NAMES.code("victim", "victim")
    values = json.loads(
        NAMES.rename_in_json("mallory", text.encode()), object_pairs_hook=lambda pairs: [value for _, value in pairs]
    )
    assert real not in values and len(values) >= 1


def test_messages_name_what_is_at_the_engine() -> None:
    """Names of inputs and outputs are renamed; a message without any stays as it is, one that is none is refused."""
    request = protobuf.message("inference.ModelInferRequest")(model_name="m")
    request.inputs.add(name="a").parameters["shared_memory_region"].string_param = "r"
    request.outputs.add(name="b").parameters["shared_memory_region"].string_param = "s"
    renamed = protobuf.parse(
        "inference.ModelInferRequest", NAMES.rename_in_message("alice", request.SerializeToString())
    )
    assert renamed.inputs[0].parameters["shared_memory_region"].string_param == "r" + NAMES.code("alice", "r")
    assert renamed.outputs[0].parameters["shared_memory_region"].string_param == "s" + NAMES.code("alice", "s")
    untouched = protobuf.message("inference.ModelInferRequest")(model_name="m").SerializeToString()
    assert NAMES.rename_in_message("alice", untouched) is untouched
    with pytest.raises(ValueError, match="ModelInferRequest"):
        NAMES.rename_in_message("alice", b"\xff shared_memory_region")


NAMED = b'{"inputs":[%b]}'


def test_a_long_name_names_no_region_and_costs_nothing() -> None:
    """A name of megabytes stays as it is; what the search takes of memory does not depend on it."""
    text = NAMED % (b'"shared_memory_region":"%b"' % (b"a" * 1_000_000))
    tracemalloc.start()
    try:
        assert NAMES.rename_in_json("alice", text) == text
        assert tracemalloc.get_traced_memory()[1] < 4 * len(text)
    finally:
        tracemalloc.stop()


def test_too_many_names_are_refused() -> None:
    """A request that names more regions, or that has more tensors, than the items that a request may have."""
    names = RegionNames(b"secret", JsonBounds(items=3))
    name = b'"shared_memory_region":"r"'
    assert names.rename_in_json("alice", NAMED % b",".join([name] * 3)).count(b'"r.') == 3
    with pytest.raises(GatewayError, match="--max-request-items") as refused:
        names.rename_in_json("alice", NAMED % b",".join([name] * 4))
    assert refused.value.kind is ErrorKind.BODY_TOO_LARGE
    request = protobuf.message("inference.ModelInferRequest")(model_name="m")
    for _ in range(4):
        request.inputs.add(name="a").parameters["shared_memory_region"].string_param = "r"
    with pytest.raises(GatewayError, match="--max-request-items"):
        names.rename_in_message("alice", request.SerializeToString())
