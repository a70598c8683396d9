"""Facts for rules, read from the JSON of V2 bodies."""

from __future__ import annotations

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.protocol.errors import ErrorKind, GatewayError
from gateway.protocol.operations import Operation
from gateway.protocol.v2_facts import NO_BODY, BodyFacts, InputFacts, read_body_facts, read_parameters

INFERS = [
    (b'{"inputs":[]}', BodyFacts()),
    (b"{}", BodyFacts()),
    (b"", NO_BODY),
    (
        b'{"id":"1","parameters":{"sequence_id":7,"sequence_start":true,"user":"u","t":0.5,"x":null,"y":[1]},"inputs":[]}',
        BodyFacts({"sequence_id": 7, "sequence_start": True, "user": "u", "t": 0.5}),
    ),
    (
        b'{"inputs":[{"name":"x","datatype":"FP32","shape":[2,3],"data":[1,2,3,4,5,6]}]}',
        BodyFacts(inputs=(InputFacts("x", "FP32", (2, 3), 24),)),
    ),
    (
        b'{"inputs":[{"name":"t","datatype":"BYTES","shape":[2,1],"data":[["a\xc3\xa9"],["bc"]]}]}',
        BodyFacts(inputs=(InputFacts("t", "BYTES", (2, 1), 5),)),
    ),
    (
        b'{"inputs":[{"name":"t","datatype":"BYTES","shape":[1],"parameters":{"binary_data_size":104}}]}',
        BodyFacts(inputs=(InputFacts("t", "BYTES", (1,), 104),)),
    ),
    (
        b'{"inputs":[{"name":"s","datatype":"FP16","shape":[4],"parameters":{"shared_memory_region":"r",'
        b'"shared_memory_byte_size":64}}]}',
        BodyFacts(inputs=(InputFacts("s", "FP16", (4,), 64),)),
    ),
    (
        b'{"inputs":[{"name":"x","datatype":"INT64","shape":[],"data":[1]},{"name":"z","datatype":"NEW","shape":[1]}]}',
        BodyFacts(inputs=(InputFacts("x", "INT64", (), 8), InputFacts("z", "NEW", (1,), 0))),
    ),
]


@pytest.mark.parametrize("body, facts", INFERS)
def test_an_inference_tells_parameters_and_inputs(body: bytes, facts: BodyFacts) -> None:
    """An input's size is declared, or follows from shape and datatype, or from its texts; only scalar parameters are
    facts."""
    assert read_body_facts(Operation.INFER, body) == facts


GENERATES = [
    (b'{"text_input":"hi","max_tokens":5}', {"text_input": "hi", "max_tokens": 5}),
    (b'{"id":"7","text_input":"hi","parameters":{"stream":true}}', {"text_input": "hi", "stream": True}),
    (b'{"seed":1,"parameters":{"seed":2},"stop":["a"]}', {"seed": 2}),
]


@pytest.mark.parametrize("operation", [Operation.GENERATE, Operation.GENERATE_STREAM])
@pytest.mark.parametrize("body, parameters", GENERATES)
def test_a_generate_tells_every_scalar_key(operation: Operation, body: bytes, parameters: dict[str, object]) -> None:
    """Extra keys and parameters form one set, in which parameters take precedence."""
    assert read_body_facts(operation, body) == BodyFacts(parameters)  # type: ignore[arg-type]


@pytest.mark.parametrize("operation", [Operation.LOAD, Operation.MODEL_METADATA, Operation.MODEL_TRACE])
def test_other_operations_tell_nothing(operation: Operation) -> None:
    """Bodies of other operations have no facts and are not parsed."""
    assert read_body_facts(operation, b"{not json") is NO_BODY


MALFORMED = [
    (b"[1]", "the request JSON must be an object"),
    (b'{"parameters":[]}', "'parameters' must be an object"),
    (b'{"inputs":{}}', "'inputs' must be an array"),
    (b'{"inputs":null}', "'inputs' must be an array"),
    (b'{"inputs":[1]}', "an input must be an object"),
    (b'{"inputs":[{}]}', "an input must have a 'name'"),
    (b'{"inputs":[{"name":"x"}]}', "input 'x' must have a 'datatype'"),
    (b'{"inputs":[{"name":"x","datatype":"FP32"}]}', "input 'x' must have a 'shape' of up to 64 whole numbers"),
    (
        b'{"inputs":[{"name":"x","datatype":"FP32","shape":[-1]}]}',
        "input 'x' must have a 'shape' of up to 64 whole numbers",
    ),
    (
        b'{"inputs":[{"name":"x","datatype":"FP32","shape":[' + b"9," * 64 + b"9]}]}",
        "input 'x' must have a 'shape' of up to 64 whole numbers",
    ),
    (
        b'{"inputs":[{"name":"x","datatype":"FP32","shape":[true]}]}',
        "input 'x' must have a 'shape' of up to 64 whole numbers",
    ),
    (
        b'{"inputs":[{"name":"x","datatype":"FP32","shape":[1],"parameters":1}]}',
        "'parameters' must be an object",
    ),
]


@pytest.mark.parametrize("body, message", MALFORMED)
def test_what_rules_cannot_read_is_a_bad_request(body: bytes, message: str) -> None:
    """A body with a malformed input is a bad request whose error says what is wrong."""
    with pytest.raises(GatewayError) as caught:
        read_body_facts(Operation.INFER, body)
    assert (caught.value.kind, caught.value.message) == (ErrorKind.BAD_REQUEST, message)


@pytest.mark.parametrize("body", [b"{", b"\xff", b'{"a":NAN}', b"[" * 100_000])
def test_what_is_not_json_is_a_bad_request(body: bytes) -> None:
    """JSON that is broken, wrongly encoded or nested too deeply is a bad request."""
    with pytest.raises(GatewayError, match="failed to parse the request JSON: "):
        read_body_facts(Operation.INFER, body)


def test_deep_data_is_measured_without_recursion() -> None:
    """Deeply nested texts are measured without recursion."""
    depth = 900
    data = b"[" * depth + b'"ab"' + b"]" * depth
    body = b'{"inputs":[{"name":"t","datatype":"BYTES","shape":[1],"data":' + data + b"}]}"
    assert read_body_facts(Operation.INFER, body).inputs[0].num_bytes == 2


_SCALARS = st.one_of(st.booleans(), st.integers(-9, 9), st.text(st.sampled_from('ab{}[]":,\\ \u00e9')))
_OBJECTS = st.dictionaries(
    st.sampled_from(["session_id", "parameters", "x"]),
    st.one_of(_SCALARS, st.none(), st.dictionaries(st.just("y"), _SCALARS)),
)
_TENSORS = st.lists(st.fixed_dictionaries({"name": st.just("t"), "parameters": _OBJECTS}), max_size=2)
_BODIES = st.dictionaries(
    st.sampled_from(["id", "parameters", "inputs", "outputs", "text_input"]), st.one_of(_OBJECTS, _TENSORS, _SCALARS)
)


@given(body=_BODIES)
def test_parameters_are_the_same_read_alone(body: dict[str, object]) -> None:
    """The fast reader finds the same parameters as a full JSON parse, whatever surrounds them."""
    written = body.get("parameters")
    expected = written if isinstance(written, dict) else {}
    expected = {key: value for key, value in expected.items() if isinstance(value, str | int | float)}
    assert read_parameters(Operation.INFER, orjson.dumps(body)) == expected
    assert read_parameters(Operation.INFER, orjson.dumps(body, option=orjson.OPT_INDENT_2)) == expected


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[]", b"null", b'{"parameters":', b'{"parameters":{"a":1}', b'"parameters"']
)
def test_parameters_of_no_json_are_none(body: bytes) -> None:
    """A broken body has no parameters, except those before the error."""
    assert read_parameters(Operation.INFER, body) in ({}, {"a": 1})
