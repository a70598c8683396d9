"""Property tests of control conversion: round trips preserve data, and any input is converted or rejected."""

import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.protocol.conversion.control import rest_request, rest_response, rpc_request, rpc_response
from gateway.protocol.conversion.control_errors import RpcError
from gateway.protocol.conversion.control_table import CONTROLS
from gateway.protocol.errors import ErrorKind, GatewayError
from gateway.protocol.protobuf import parse
from tests.protocol.conversion.control_cases import DURATIONS, REQUESTS, RESPONSE_DURATIONS, Fields, request, response

# Any input raises these errors only.
JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=5,
)
KNOWN_KEYS = st.sampled_from(
    [
        *("ready", "parameters", "config", "file:1/x", "key", "offset", "byte_size", "raw_handle", "b64", "device_id"),
        *("trace_level", "trace_rate", "log_info", "name", "versions", "inputs", "shape", "model_stats", "regions"),
        *("inference_stats", "success", "count", "batch_stats", "response_stats", "input", "dims", "version_policy"),
    ]
)
KNOWN_JSON = st.recursive(
    JSON_VALUES,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(KNOWN_KEYS, inner, max_size=3),
    max_leaves=8,
)


@given(rpc=st.sampled_from(sorted(CONTROLS)), value=KNOWN_JSON)
@settings(max_examples=300, deadline=None)
def test_any_json_is_read_or_refused(rpc: str, value: Any) -> None:
    """Any JSON converts to a valid request or reply, or is rejected with a GatewayError of the expected kind."""
    data = json.dumps(value).encode()
    for sent in (item for item in REQUESTS if item[0] == rpc):
        try:
            name, made = rpc_request(sent[2], sent[3], data)
        except GatewayError as error:
            assert error.kind is ErrorKind.BAD_REQUEST
        else:
            assert name == rpc
            parse(f"inference.{rpc}Request", made)
    try:
        parse(f"inference.{rpc}Response", rpc_response(rpc, 200, data))
    except GatewayError as error:
        assert error.kind is ErrorKind.UPSTREAM_PROTOCOL


@given(rpc=st.sampled_from(sorted(CONTROLS)), data=st.binary(max_size=40), status=st.integers(100, 599))
@settings(max_examples=300, deadline=None)
def test_any_bytes_are_read_or_refused(rpc: str, data: bytes, status: int) -> None:
    """Any bytes convert to a valid message, or are rejected with a GatewayError or RpcError."""
    try:
        sent = rest_request(rpc, data)
        assert sent.target.isascii()
    except GatewayError as error:
        assert error.kind in (ErrorKind.BAD_REQUEST, ErrorKind.UNSUPPORTED)
    try:
        assert rest_response(rpc, data).status in (200, 400)
    except GatewayError as error:
        assert error.kind is ErrorKind.UPSTREAM_PROTOCOL
    try:
        rpc_response(rpc, status, data)
    except RpcError as refused:
        assert 0 < refused.code < 17
    except GatewayError as error:
        assert error.kind is ErrorKind.UPSTREAM_PROTOCOL


# Round trips.
UINT64 = st.integers(0, (1 << 64) - 1)
NAMES = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
DURATION_FIELDS = st.fixed_dictionaries({"count": UINT64, "ns": UINT64})
STATISTICS = st.fixed_dictionaries(
    {"name": NAMES, "version": NAMES, "last_inference": UINT64, "inference_count": UINT64},
    optional={
        "inference_stats": st.dictionaries(st.sampled_from(DURATIONS), DURATION_FIELDS),
        "response_stats": st.dictionaries(
            NAMES, st.dictionaries(st.sampled_from(RESPONSE_DURATIONS), DURATION_FIELDS), max_size=2
        ),
        "batch_stats": st.lists(st.fixed_dictionaries({"batch_size": UINT64, "compute_infer": DURATION_FIELDS})),
        "memory_usage": st.lists(
            st.fixed_dictionaries(
                {"type": NAMES, "id": st.integers(-(1 << 63), (1 << 63) - 1), "byte_size": UINT64}, optional={}
            ),
            max_size=2,
        ),
    },
)
INDEX = st.fixed_dictionaries({"name": NAMES, "version": NAMES, "state": NAMES, "reason": NAMES})
TRACE_VALUES = st.fixed_dictionaries({"value": st.lists(NAMES, max_size=1)})
LOG_VALUES = st.one_of(
    st.fixed_dictionaries({"bool_param": st.booleans()}),
    st.fixed_dictionaries({"uint32_param": st.integers(0, (1 << 32) - 1)}),
    st.fixed_dictionaries({"string_param": NAMES}),
)
RESPONSES = st.one_of(
    st.tuples(st.just("ModelStatistics"), st.fixed_dictionaries({"model_stats": st.lists(STATISTICS, max_size=2)})),
    st.tuples(st.just("RepositoryIndex"), st.fixed_dictionaries({"models": st.lists(INDEX, max_size=3)})),
    st.tuples(st.just("TraceSetting"), st.fixed_dictionaries({"settings": st.dictionaries(NAMES, TRACE_VALUES)})),
    st.tuples(st.just("LogSettings"), st.fixed_dictionaries({"settings": st.dictionaries(NAMES, LOG_VALUES)})),
)


@given(RESPONSES)
@settings(max_examples=150, deadline=None)
def test_responses_come_back(drawn: tuple[str, Fields]) -> None:
    """Statistics, indexes and settings survive a round trip through REST."""
    rpc, fields = drawn
    data = response(rpc, **fields)
    reply = rest_response(rpc, data)
    assert rpc_response(rpc, reply.status, reply.body) == data


SETTING_NAMES = NAMES.map("of_tomorrow_{}".format)  # a known setting accepts values of its own type only
REQUESTED = st.one_of(
    st.tuples(st.just("ModelMetadata"), st.fixed_dictionaries({"name": NAMES.filter(bool)})),
    st.tuples(st.just("ModelStatistics"), st.fixed_dictionaries({"name": NAMES})),
    st.tuples(st.just("SystemSharedMemoryStatus"), st.fixed_dictionaries({"name": NAMES})),
    st.tuples(
        st.just("TraceSetting"),
        st.fixed_dictionaries({"model_name": NAMES, "settings": st.dictionaries(SETTING_NAMES, TRACE_VALUES)}),
    ),
    st.tuples(st.just("LogSettings"), st.fixed_dictionaries({"settings": st.dictionaries(SETTING_NAMES, LOG_VALUES)})),
    st.tuples(
        st.just("RepositoryModelLoad"),
        st.fixed_dictionaries(
            {
                "model_name": NAMES.filter(bool),
                "parameters": st.dictionaries(
                    NAMES.map("file:{}".format), st.fixed_dictionaries({"bytes_param": st.binary(max_size=20)})
                ),
            }
        ),
    ),
)


@given(REQUESTED)
@settings(max_examples=200, deadline=None)
def test_requests_come_back(drawn: tuple[str, Fields]) -> None:
    """Names, settings and files survive a round trip through REST."""
    rpc, fields = drawn
    data = request(rpc, **fields)
    sent = rest_request(rpc, data)
    assert rpc_request(sent.method, sent.target, sent.body.data) == (rpc, data)
