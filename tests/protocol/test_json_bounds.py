"""Bounds on JSON that is read whole."""

from __future__ import annotations

import json
import tracemalloc

import orjson
import pytest

from gateway.protocol.errors import ErrorKind, GatewayError
from gateway.protocol.json_bounds import SHORT_BYTES, JsonBounds
from gateway.protocol.json_reader import read_json
from gateway.protocol.llm.model_name import find_model
from gateway.protocol.llm.request_facts import read_generation_facts
from gateway.protocol.operations import Operation
from gateway.protocol.v2_facts import read_body_facts, read_parameters, without_numbers

MESSAGE = {"role": "user", "content": "a" * 30}


@pytest.mark.parametrize(
    "body",
    [
        b"[" + b"0," * 1_000_000 + b"0]",
        b"[" + b"{}," * 200_000 + b"0]",
        b"[" + b"[]," * 250_000 + b"0]",
        b'{"a":[' + b'{"":0},' * 200_000 + b"0]}",
    ],
)
def test_a_document_of_too_many_values_is_not_built(body: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """The values are counted before the document is built, which is then never done."""
    monkeypatch.delattr(orjson, "loads")
    for read in (JsonBounds().read, JsonBounds().check_values):
        with pytest.raises(GatewayError, match="--max-json-values") as refused:
            read(body)
        assert refused.value.kind is ErrorKind.BODY_TOO_LARGE
    doubled = b'{"model":"x","a":%b,"model":"m"}' % body
    with pytest.raises(GatewayError, match="--max-json-values"):
        find_model(doubled)
    with pytest.raises(GatewayError, match="--max-json-values"):
        read_generation_facts(doubled)
    with pytest.raises(GatewayError, match="--max-json-values"):
        read_body_facts(Operation.INFER, doubled)


@pytest.mark.parametrize("text", ["Well, {this} is [it]: ", 'a "quote", ', "a \\\\", '\\\\", {'])
def test_marks_in_long_texts_are_no_values(text: str) -> None:
    """Marks in a text count for nothing, whatever escapes stand there, and those behind it count."""
    body = orjson.dumps(
        {"model": "m", "messages": [{"role": "user", "content": "some text " * 10_000 + text * 8000}], "stop": "a,{"}
    )
    bounds = JsonBounds(values=1000, items=100)
    bounds.check_values(body)
    bounds.check(body)
    more = body[:-1] + b',"a":[' + b'{"b":0},' * 200 + b"0]}"
    with pytest.raises(GatewayError, match="--max-json-values"):
        bounds.check_values(more)


@pytest.mark.parametrize(
    "fields",
    [
        {"messages": [MESSAGE] * 5000},
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}] * 2500}] * 2},
        {"tools": [{"type": "function", "function": {"name": "f"}}] * 5000},
        {"input": ["some text"] * 8000},
        {"prompt": [[1, 2, 3]] * 20_000},
        {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1]}] * 5000},
        {"parameters": {f"parameter {at}": at for at in range(5000)}},
        {f"field {at}": at for at in range(5000)},
    ],
)
def test_too_many_items_are_refused(fields: dict[str, object]) -> None:
    """Messages, parts, tools, prompts, tensors and parameters are bounded together."""
    body = json.dumps(fields).encode()
    assert len(body) > SHORT_BYTES
    for read in (JsonBounds().read, JsonBounds().check):
        with pytest.raises(GatewayError, match="--max-request-items"):
            read(body)
    JsonBounds(items=50_000).check(body)


def test_long_texts_and_schemas_are_within_bounds() -> None:
    """Commas and braces of texts are no values to the reader, and a tool's schema is one item, however long."""
    schema = {"type": "object", "properties": {f"p{at}": {"type": "string"} for at in range(2000)}}
    text = json.dumps({"a": [{"b": 1}] * 2000})
    body = json.dumps({"messages": [{"role": "user", "content": text}] * 2, "tools": [{"function": schema}]}).encode()
    assert JsonBounds().read(body)["tools"]
    JsonBounds().check(body)


def test_the_numbers_of_tensors_are_not_built(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rules read the parameters and inputs of a long request of numbers from a document without them, NaN too."""
    numbers = ",".join(["1.5", "NaN", "-2e3", "null"] * 500_000)
    inputs = f'"inputs":[{{"name":"x","datatype":"FP32","data":[[{numbers}]],"shape":[1,2000000]}}]'
    body = f'{{"id":"\\"data\\":[1]",{inputs},"parameters":{{"level":"high"}}}}'.encode()
    built: list[int] = []
    loads = orjson.loads
    monkeypatch.setattr(orjson, "loads", lambda text: built.append(len(text)) or loads(text))
    facts = read_body_facts(Operation.INFER, body)
    assert dict(facts.parameters) == {"level": "high"}
    assert [(tensor.name, tensor.shape, tensor.num_bytes) for tensor in facts.inputs] == [("x", (1, 2000000), 8000000)]
    assert read_parameters(Operation.INFER, body) == {"level": "high"}
    assert max(built) < 500


@pytest.mark.parametrize(
    "body, short",
    [
        (b'{"data":[1,2]}', b'{"data":[]}'),
        (b'{"data" : [[1, 2], [3]] , "a":1}', b'{"data" : [] , "a":1}'),
        (b'{"a":[{"data":[1]},{"data":[true]}]}', b'{"a":[{"data":[]},{"data":[]}]}'),
        (b'{"data":["a",1]}', b'{"data":["a",1]}'),
        (b'{"data":[1,"a"]}', b'{"data":[1,"a"]}'),
        (b'{"data":[{"b":1}]}', b'{"data":[{"b":1}]}'),
        (b'{"a":"\\"data\\":[1]"}', b'{"a":"\\"data\\":[1]"}'),
        (b'{"data":[1]', b'{"data":[]'),
        (b'{"data":5,"b":"data"}', b'{"data":5,"b":"data"}'),
        (b'{"data":[1]' + b" " * 5000 + b',"a":1}', b'{"data":[]' + b" " * 5000 + b',"a":1}'),
    ],
)
def test_arrays_of_numbers_are_left_out(body: bytes, short: bytes) -> None:
    """Only whole arrays of numbers, words and arrays under the key `data` are left out."""
    assert without_numbers(body, JsonBounds()) == short


def test_arrays_of_numbers_are_counted_before_they_are_looked_for() -> None:
    """A body of many keys `data` is refused by their number; each that is looked at would cost 3 us."""
    with pytest.raises(GatewayError, match="--max-request-items"):
        without_numbers(b',"data":[1' * 5000, JsonBounds())


def test_a_text_of_escapes_takes_no_memory() -> None:
    """Beside spellings of numbers that Python does not know, texts are stepped over without a state for each escape."""
    body = b'{"x":"%b","y":Inf}' % (b'\\"' * 500_000)
    tracemalloc.start()
    try:
        read_json(body)
        assert tracemalloc.get_traced_memory()[1] < 16 * len(body)
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("last", ["model", "Model", "\\u006dodel"])
def test_a_long_body_names_its_model_once(last: str) -> None:
    """A long body is not written again for readers that differ: one that names its model twice is refused."""
    doubled = '{"model":"x","a":"%s","' + last + '":"m"}'
    assert find_model((doubled % "a").encode()) is not None
    with pytest.raises(GatewayError, match="must name its 'model' once") as refused:
        find_model((doubled % ("a" * 300_000)).encode())
    assert refused.value.kind is ErrorKind.BAD_REQUEST


def test_marks_in_texts_are_no_values() -> None:
    """A prompt of a million braces and commas is one value; as many values beside texts are too many."""
    prompt = b'{"model":"m","messages":[{"role":"user","content":"%b"}]}' % (b"{a, b}" * 500_000)
    JsonBounds().check_values(prompt)
    with pytest.raises(GatewayError, match="--max-json-values"):
        JsonBounds().check_values(prompt[:-1] + b',"a":[' + b"{}," * 200_000 + b"0]}")
