"""Finding and replacing the model name in a JSON body without parsing it."""

from __future__ import annotations

import json
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.protocol.llm import model_name
from gateway.protocol.llm.model_name import ModelName, find_model, renamed

is_json = model_name._is_json

# A body in which every parser finds the same model, and that model.
NAMED = {
    "first": (b'{"model":"m","messages":[]}', "m"),
    "first, with space": (b' {\n\t"model" : "m" ,\r\n "messages": [] }\n', "m"),
    "alone": (b'{"model":"m"}', "m"),
    "behind long things": (b'{"messages":[{"role":"user","content":"hi"}],"model":"m","stream":true}', "m"),
    "last": (b'{"messages":[],"model":"m"}', "m"),
    "before tools": (b'{"messages":[],"model":"m","tools":[{"type":"function","function":{"name":"f"}}]}', "m"),
    "a slash, as PHP writes it": (rb'{"model":"meta\/llama","a":1}', "meta/llama"),
    "letters beyond ASCII": ('{"model":"modèle"}'.encode(), "modèle"),
    "letters beyond ASCII, escaped": (rb'{"a":"\u00e9","model":"mod\u00e8le"}', "modèle"),
    "escaped at signs and grave accents are no keys": (rb'{"a":"\u0040\u0060x\u0060","model":"m"}', "m"),
    "a quote in it": (rb'{"model":"a\"b"}', 'a"b'),
    "empty": (b'{"model":""}', ""),
    "a text that quotes such a body": (rb'{"model":"m","a":"{\"model\":\"x\"}"}', "m"),
    "a text that ends with the word": (rb'{"model":"m","a":"\"model"}', "m"),
    "one of a tool's arguments has the name": (
        b'{"model":"m","tools":[{"properties":{"model":{"type":"string"}}}]}',
        "m",
    ),
    "and a text in it too": (b'{"a":[{"model":"x"}],"model":"m","b":{"model":"y"}}', "m"),
    "and the same text": (b'{"a":[{"model":"m"}],"model":"m","b":{"model":"m"}}', "m"),
    "a role": (b'{"messages":[{"role":"model"}],"model":"m"}', "m"),
    "another's case further inside": (b'{"a":{"Model":"x"},"model":"m"}', "m"),
}
UNSURE = {
    "twice": (b'{"model":"a","model":"b"}', "b"),
    "twice, far apart": (b'{"model":"a","messages":[{"role":"user"}],"model":"b","stream":true}', "b"),
    "twice the same": (b'{"model":"a","model":"a"}', "a"),
    "thrice, the first and the last the same": (b'{"model":"a","model":"b","model":"a"}', "a"),
    "another's case, which Ollama takes": (b'{"model":"a","Model":"b"}', "a"),
    "in capitals": (b'{"MODEL":"b","model":"a","x":1}', "a"),
    "escaped": (rb'{"\u006dodel":"a"}', "a"),
    "escaped beside the plain one": (rb'{"model":"a","mod\u0065l":"b"}', "b"),
    "escaped before the plain one": (rb'{"mod\u0065l":"b","model":"a"}', "a"),
    "escaped in capitals": (rb'{"\u004Dodel":"b","model":"a"}', "a"),
    "twice, made up for by a text": (rb'{"model":"a","model":"b","x":"\u0022model"}', "b"),
    "a name of more than a kilobyte": (b'{"model":"%s"}' % (b"x" * 2000), "x" * 2000),
}
NONE = [
    b"",
    b"{}",
    b"[]",
    b'"model"',
    b'{"messages":[]}',
    b'{"model":null}',
    b'{"model":1}',
    b'{"model":["m"]}',
    b'{"model":{"model":"m"}}',
    b'{"a":{"model":"m"}}',
    b'[{"model":"m"}]',
    b'{"a":[{"model":"m"}]}',
    b'{"Model":"m"}',
    b'{"a":"model","b":"m"}',
    b'{"a":"model"',
    b'{"a":1,"model":"m"',
    rb'{"a":"\"model\":\"m\"}"}',
    rb'{"a":"\"model":"m"}',
    b'{"model":"\xff"}',
    rb'{"model":"\ud800"}',
    b'{"model":"m","model":',
    '{"model":"m"}'.encode("utf-16"),
]


@pytest.mark.parametrize("body, name", NAMED.values(), ids=NAMED)
def test_a_model_is_found_and_exchanged_in_place(body: bytes, name: str) -> None:
    """The model name is replaced in place, and the rest of the body keeps its bytes."""
    found = find_model(body)
    assert found is not None
    assert found.name == name
    assert found.is_sure
    assert json.loads(b'"' + body[found.start : found.end] + b'"') == name
    assert renamed(body, found, 'n"é') == body[: found.start] + 'n\\"é'.encode() + body[found.end :]
    assert json.loads(renamed(body, found, 'n"é')) == json.loads(body) | {"model": 'n"é'}


@pytest.mark.parametrize("body, name", UNSURE.values(), ids=UNSURE)
def test_a_model_that_readers_might_differ_on_is_written_anew(body: bytes, name: str) -> None:
    """An ambiguous body is rewritten with exactly one model field and its other fields."""
    found = find_model(body)
    assert found == ModelName(name, -1, -1)
    fields = json.loads(renamed(body, found, "n"), object_pairs_hook=list)
    assert [pair for pair in fields if pair[0].lower() == "model"] == [("model", "n")]
    assert {key for key, _ in fields} == {"model"} | {key for key in json.loads(body) if key.lower() != "model"}


@pytest.mark.parametrize("filler", [b'"' + b"x" * 20_000 + b'"', b"[" + b'"x",' * 10_000 + b"1]"])
@pytest.mark.parametrize("body, name", [*NAMED.values(), *UNSURE.values()], ids=[*NAMED, *UNSURE])
def test_a_long_body_has_the_same_model(body: bytes, name: str, filler: bytes) -> None:
    """Long bodies are searched in another way, whether quotes are rare in them or not."""
    short = find_model(body)
    assert short is not None
    for long in (
        b'{"filler":' + filler + b"," + body.lstrip().removeprefix(b"{"),
        body.rstrip().removesuffix(b"}") + b',"filler":' + filler + b"}",
    ):
        found = find_model(long)
        assert found is not None
        assert (found.name, found.is_sure) == (name, short.is_sure)
        assert not found.is_sure or json.loads(b'"' + long[found.start : found.end] + b'"') == name


@pytest.mark.parametrize("body", NONE)
def test_no_model_is_found_where_none_is_named(body: bytes) -> None:
    """Keys of nested objects, values that are no strings, and bodies that are no objects name no model."""
    assert find_model(body) is None


class Pairs(list):  # type: ignore[type-arg]
    """The fields of an object, in which a key may occur twice."""


words = st.sampled_from(
    [
        "model",
        "Model",
        "MODEL",
        '"model',
        'model"',
        '"model":"x"',
        "a",
        "",
        "\\",
        '"',
        "{",
        "}",
        "model\\",
        "é\n",
        "\u2028",
    ]
)
values = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | words,
    lambda inner: st.lists(inner, max_size=3) | st.lists(st.tuples(words, inner), max_size=3).map(Pairs),
    max_leaves=6,
)


def written(value: Any, draw: Any) -> str:
    """The value as JSON, with random escapes and white space."""
    space = draw(st.sampled_from(["", "", " ", "\n\t"]))
    if isinstance(value, Pairs):
        fields = [written(key, draw) + space + ":" + space + written(inner, draw) for key, inner in value]
        return "{" + space + ("," + space).join(fields) + space + "}"
    if isinstance(value, list):
        return "[" + ",".join([written(inner, draw) for inner in value]) + space + "]"
    text = json.dumps(value, ensure_ascii=draw(st.booleans()))
    if isinstance(value, str) and draw(st.integers(0, 9)) == 0 and "\\" not in text:
        at = draw(st.integers(1, len(text) - 1))
        if at < len(text) - 1 and ord(text[at]) < 128:
            return f"{text[:at]}\\u{ord(text[at]):04{draw(st.sampled_from('xX'))}}{text[at + 1 :]}"
    return text.replace('\\"', "\\u0022") if "\\\\" not in text and draw(st.integers(0, 9)) == 0 else text


@st.composite
def bodies(draw: Any) -> tuple[Pairs, bytes]:
    fields = Pairs(draw(st.lists(st.tuples(words, values), max_size=4)))
    names = draw(st.lists(st.tuples(st.sampled_from(["model", "model", "Model"]), st.sampled_from("ab")), max_size=2))
    for name in names:
        fields.insert(draw(st.integers(0, len(fields))), name)
    return fields, written(fields, draw).encode()


@settings(max_examples=200, deadline=None)
@given(bodies())
def test_what_is_found_is_what_parsers_find(drawn: tuple[Pairs, bytes]) -> None:
    """The name is the one that JSON parsers find, and renaming changes nothing else."""
    fields, body = drawn
    found = find_model(body)
    spelled = [pair for pair in fields if pair[0].lower() == "model"]
    last = orjson.loads(body).get("model")
    if found is None:
        assert not isinstance(last, str)
        return
    assert found.name == last
    after = json.loads(renamed(body, found, "new"), object_pairs_hook=Pairs)
    if found.is_sure:
        assert spelled == [("model", found.name)]
        assert after == [("model", "new") if pair == spelled[0] else pair for pair in plain(fields)]
    else:
        assert [pair for pair in after if pair[0].lower() == "model"] == [("model", "new")]


def plain(value: Any) -> Any:
    """The value as a JSON parser returns it, with objects as lists of tuples."""
    if isinstance(value, Pairs):
        return Pairs([(key, plain(inner)) for key, inner in value])
    return [plain(inner) for inner in value] if isinstance(value, list) else value


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.sampled_from([b'"model"', b'"a"', b"{", b"}", b"[", b"]", b":", b",", b'"', b"\\", b" "]), max_size=14)
)
def test_where_a_name_is_found_in_any_bytes_json_has_it_too(pieces: list[bytes]) -> None:
    """In any valid JSON document the name is the one that a JSON parser finds."""
    body = b"".join(pieces)
    found = find_model(body)
    try:
        fields = orjson.loads(body)
    except orjson.JSONDecodeError:
        return
    name = fields.get("model") if isinstance(fields, dict) else None
    assert (found and found.name) == (name if isinstance(name, str) else None)


@pytest.mark.parametrize("at_start", [False, True])
def test_a_long_body_is_read_a_few_times(monkeypatch: pytest.MonkeyPatch, at_start: bool) -> None:
    """Where a long body holds the key and the name many times, only the places next to its ends are looked at."""
    readings = []
    monkeypatch.setattr(model_name, "_is_json", lambda text, parse: readings.append(len(text)) or is_json(text, parse))
    inner = b'{"model":"m","b":' * 15 + b'"' + b"x" * 300_000 + b'NaN"' + b"}" * 15
    body = b'{"model":"m","z":%b}' % inner if at_start else b'{"z":%b,"model":"m"}' % inner
    found = find_model(b'{"y":1,' + body[1:])
    assert found is not None and found.is_sure and found.name == "m"
    assert len(readings) <= 4


def test_a_long_body_with_schemas_of_models() -> None:
    """Properties of tools that are called `model` are no places where the name might stand."""
    tools = b",".join([b'{"properties":{"model":{"type":"string"}}}'] * 100)
    body = b'{"a":[%b],"messages":"%b","model":"m","tools":[%b]}' % (tools, b"x" * 300_000, tools)
    found = find_model(body)
    assert found is not None and found.is_sure and body[found.start : found.end] == b"m"
