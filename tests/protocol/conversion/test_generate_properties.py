"""Property tests: generate requests survive a round trip through gRPC."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.protocol.conversion.generate import (
    generate_error,
    generate_of_infer_request,
    generate_of_infer_response,
    infer_request_of_generate,
    infer_response_of_generate,
)
from gateway.protocol.errors import GatewayError
from tests.protocol.conversion.generates import METADATA

scalars = st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats() | st.text(max_size=5)
contents = st.fixed_dictionaries(
    {},
    optional={
        "id": st.text(min_size=1, max_size=3),
        "text": st.lists(st.text(max_size=4), min_size=1, max_size=3),
        "n": st.integers(-(2**31), 2**31 - 1),
        "open": st.lists(st.floats(width=32), max_size=3),
        "pairs": st.lists(st.tuples(st.integers(-128, 127), st.integers(-128, 127)), max_size=2).map(
            lambda pairs: [number for pair in pairs for number in pair]
        ),
        "parameters": st.dictionaries(st.text("xyz", min_size=1, max_size=3), scalars, min_size=1, max_size=3),
    },
)


@settings(max_examples=150, deadline=None)
@given(contents)
def test_a_generate_goes_by_grpc_and_back(content: dict[str, Any]) -> None:
    """Inputs, parameters and id are preserved, but a list of one becomes a scalar and the id also becomes a
    parameter."""
    sent = infer_request_of_generate(json.dumps(content).encode(), METADATA, "m", "")
    came = json.loads(generate_of_infer_request(sent, METADATA).data)
    came.get("parameters", {}).pop("id", None)
    assert repr(flat(came)) == repr(flat(content))


def flat(content: dict[str, Any]) -> dict[str, Any]:
    """The content with sorted keys, lists of one unwrapped, and `parameters` always present."""
    opened = {key: value[0] if isinstance(value, list) and len(value) == 1 else value for key, value in content.items()}
    parameters = opened.pop("parameters", {})
    return dict(sorted(opened.items())) | {"parameters": dict(sorted(parameters.items()))}


CONVERSIONS = {
    "infer_request_of_generate": lambda data: infer_request_of_generate(data, METADATA, "m", ""),
    "infer_response_of_generate": lambda data: infer_response_of_generate(data, METADATA),
    "infer_response_of_generate without metadata": lambda data: infer_response_of_generate(data, b""),
    "generate_of_infer_request": lambda data: generate_of_infer_request(data, METADATA),
    "generate_of_infer_response": generate_of_infer_response,
    "generate_error": generate_error,
}
values: st.SearchStrategy[Any] = st.recursive(
    st.none() | scalars | st.integers(), lambda inner: st.lists(inner, max_size=3), max_leaves=5
)
keys = st.sampled_from(
    ["id", "parameters", "text", "n", "open", "pairs", "half", "out", "scores", "error", "model_name"]
)


@pytest.mark.parametrize("convert", CONVERSIONS.values(), ids=CONVERSIONS)
@settings(max_examples=100, deadline=None)
@given(
    st.binary(max_size=40)
    | st.dictionaries(keys, values | st.dictionaries(keys, values, max_size=2), max_size=4).map(
        lambda content: json.dumps(content).encode()
    )
)
def test_what_is_malformed_is_refused_and_nothing_else(convert: Any, data: bytes) -> None:
    """Any input either converts or raises a GatewayError."""
    try:
        convert(data)
    except GatewayError as error:
        error.message.encode()
