"""Reading requests of OpenAI's responses API from clients, and writing them for engines."""

import json

import pytest

from gateway.protocol.errors import ErrorKind, GatewayError
from gateway.protocol.llm.canonical import Generation, Media, Message, Reasoning, Text, Tool, ToolCall
from gateway.protocol.llm.responses_request import read_request, write_request

HI = {"type": "message", "role": "user", "content": "Hi"}
USER = Message("user", (Text("Hi"),))


def body(**fields) -> bytes:
    return json.dumps({"model": "m", "input": [HI], "store": False, **fields}).encode()


def written(generation: Generation, drop: bool = False) -> dict:
    return json.loads(write_request(generation, model="m", drop=drop)[0])


SCHEMA = {"name": "city", "schema": {"type": "object"}, "strict": True}
OPTIONS = [
    (
        {"temperature": 0, "top_p": 0.5, "user": "u", "metadata": {"a": "b"}, "parallel_tool_calls": False},
        {"temperature": 0, "top_p": 0.5, "user": "u", "metadata": {"a": "b"}, "parallel_tool_calls": False},
    ),
    ({"max_output_tokens": 5}, {"max_tokens": 5}),
    ({"text": {"format": {"type": "json_object"}}}, {"response_format": {"type": "json_object"}}),
    (
        {"text": {"format": {"type": "json_schema", **SCHEMA}, "verbosity": "low"}},
        {"response_format": {"type": "json_schema", "json_schema": SCHEMA}, "verbosity": "low"},
    ),
    ({"reasoning": {"effort": "low"}}, {"reasoning_effort": "low"}),
    ({"top_logprobs": 2, "include": ["message.output_text.logprobs"]}, {"logprobs": 2}),
    ({"tool_choice": "required"}, {"tool_choice": "required"}),
    (
        {"tool_choice": {"type": "function", "name": "f"}},
        {"tool_choice": {"type": "function", "function": {"name": "f"}}},
    ),
    ({"stop": ["a"], "top_k": 3, "seed": 1}, {"stop": ["a"], "top_k": 3, "seed": 1}),
    *(
        (given, given)
        for given in (
            {"safety_identifier": "u", "prompt_cache_key": "k", "prompt_cache_retention": "24h"},
            {"truncation": "auto", "prompt_cache_options": {"mode": "explicit"}},
        )
    ),
]


@pytest.mark.parametrize(("given", "options"), OPTIONS)
def test_options_both_ways(given, options):
    """An option is read under its canonical name and written under the responses API's."""
    generation = read_request(body(**given))
    assert generation.options == options
    assert written(generation) == json.loads(body(**given))


@pytest.mark.parametrize(
    ("given", "options"),
    [
        ({"store": True, "background": False, "previous_response_id": None}, {}),
        ({"service_tier": "auto", "truncation": "disabled", "stream_options": {}}, {}),
        ({"reasoning": {"summary": "auto", "effort": None}, "include": ["reasoning.encrypted_content"]}, {}),
        ({"text": {"format": {"type": "text"}, "verbosity": "medium"}}, {}),
        ({"top_logprobs": 0, "include": ["message.output_text.logprobs"]}, {"logprobs": 0}),
        ({"truncation": "auto", "max_tool_calls": 2}, {"truncation": "auto", "max_tool_calls": 2}),
        ({"reasoning": {"mode": "pro"}}, {"reasoning.mode": "pro"}),
        ({"stop": "END"}, {"stop": ["END"]}),
    ],
)
def test_options_that_are_openai_s_alone(given, options):
    """Options without an effect are ignored; unknown options keep their name, so that the engine's writer can reject
    them."""
    assert read_request(body(**given)).options == options


def test_tools_both_ways():
    """Function tools are read and written."""
    tools = [
        {"type": "function", "name": "f", "description": "d", "parameters": {"type": "object"}, "strict": True},
        {"type": "function", "name": "g", "parameters": {}, "strict": None},
    ]
    generation = read_request(body(tools=tools))
    assert generation.tools == (Tool("f", "d", {"type": "object"}, True), Tool("g"))
    assert written(generation) == json.loads(body(tools=tools))


PNG, PDF = "data:image/png;base64,iVBORw==", "data:application/pdf;base64,JVBE"
INPUTS = [
    (
        [{"type": "message", "role": "developer", "content": "Be brief."}, HI],
        [Message("developer", (Text("Be brief."),)), USER],
    ),
    (
        [
            {
                "type": "message",
                "role": "user",
                "content": [
                    {"type": "input_text", "text": "what?"},
                    {"type": "input_image", "image_url": PNG, "detail": "high"},
                    {"type": "input_image", "image_url": "https://a.example/b.png", "detail": "auto"},
                    {"type": "input_file", "filename": "a.pdf", "file_data": PDF},
                    {"type": "input_file", "file_url": "https://a.example/b.pdf"},
                    {"type": "input_audio", "input_audio": {"data": "UklG", "format": "wav"}},
                ],
            }
        ],
        [
            Message(
                "user",
                (
                    Text("what?"),
                    Media("image", PNG, {"detail": "high"}),
                    Media("image", "https://a.example/b.png"),
                    Media("file", PDF, {"filename": "a.pdf"}),
                    Media("file", "https://a.example/b.pdf"),
                    Media("audio", "data:audio/wav;base64,UklG", {"format": "wav"}),
                ),
            )
        ],
    ),
    (
        [
            HI,
            {
                "type": "reasoning",
                "id": "rs_1",
                "summary": [],
                "content": [{"type": "reasoning_text", "text": "t"}],
                "encrypted_content": "s",
            },
            {"type": "message", "role": "assistant", "content": "a"},
            {"type": "function_call", "call_id": "c", "name": "f", "arguments": '{"x":1}'},
            {"type": "function_call", "call_id": "d", "name": "g", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c", "output": "r"},
            {
                "type": "function_call_output",
                "call_id": "d",
                "output": [{"type": "input_image", "image_url": PNG, "detail": "auto"}],
            },
        ],
        [
            USER,
            Message(
                "assistant",
                (Reasoning("t", "s"), Text("a")),
                (ToolCall("c", "f", '{"x":1}'), ToolCall("d", "g", "{}")),
            ),
            Message("tool", (Text("r"),), tool_call_id="c"),
            Message("tool", (Media("image", PNG),), tool_call_id="d"),
        ],
    ),
]


@pytest.mark.parametrize(("items", "messages"), INPUTS)
def test_input_both_ways(items, messages):
    """Every item becomes a message or a part of one, and is written as the same item."""
    generation = read_request(body(input=items))
    assert generation.messages == tuple(messages)
    assert written(generation) == json.loads(body(input=items))


CALL = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
SAID = {"type": "message", "id": "m", "role": "assistant", "content": [{"type": "output_text", "text": "a"}]}
THOUGHT = {"type": "reasoning", "id": "r", "summary": [{"type": "summary_text", "text": "t"}]}


@pytest.mark.parametrize(
    ("items", "messages"),
    [
        ("Hi", [USER]),
        ([{"role": "user", "content": [{"type": "input_text", "text": "Hi"}]}], [USER]),
        ([THOUGHT, CALL], [Message("assistant", (Reasoning("t"),), (ToolCall("c", "f", "{}"),))]),
        ([SAID, CALL], [Message("assistant", (Text("a"),), (ToolCall("c", "f", "{}"),))]),
        ([SAID, SAID], [Message("assistant", (Text("a"),))] * 2),
        (
            [SAID, THOUGHT, SAID],
            [Message("assistant", (Text("a"),)), Message("assistant", (Reasoning("t"), Text("a")))],
        ),
        ([{**SAID, "content": [{"type": "refusal", "refusal": "no"}]}], [Message("assistant", (Text("no"),))]),
        (
            [{"role": "user", "content": [{"type": "input_file", "file_data": "JVBE"}]}],
            [Message("user", (Media("file", "data:application/octet-stream;base64,JVBE"),))],
        ),
    ],
)
def test_input_in_other_forms(items, messages):
    """A plain text is a user message, and consecutive items of one model turn become one message."""
    assert read_request(body(input=items)).messages == tuple(messages)


def test_instructions():
    """Instructions become a system message before the input."""
    generation = read_request(body(instructions="Be brief.", stream=True))
    assert generation == Generation("m", None, (Message("system", (Text("Be brief."),)), USER), (), {}, True, True)


@pytest.mark.parametrize(
    ("given", "report"),
    [
        (b"{", "not JSON"),
        (body(input=None), "'input' is missing"),
        (body(input=3), "'input' must be a string or a list"),
        (body(model=1), "'model' must be a string"),
        (body(previous_response_id="resp_1"), "'previous_response_id' cannot be had: this gateway keeps no responses"),
        (body(conversation="c"), "'conversation' cannot be had"),
        (body(prompt={"id": "p"}), "'prompt' cannot be had"),
        (body(background=True), "'background' cannot be true"),
        (body(input=[{"type": "item_reference", "id": "x"}]), "'input[0]' is a reference"),
        (body(input=[{"type": "computer_call_output"}]), "'input[0]' is a 'computer_call_output' item"),
        (body(input=[{"role": "tool", "content": "x"}]), "'input[0].role' must be one of"),
        (body(input=[{"role": "user", "content": 3}]), "'input[0].content' must be a string or a list"),
        (
            body(input=[{"role": "user", "content": [{"type": "input_image", "file_id": "f"}]}]),
            "'input[0].content[0].file_id': this gateway keeps no files",
        ),
        (body(input=[{"role": "user", "content": [{"type": "video"}]}]), "'input[0].content[0]' is a part of type"),
        (body(input=[{"type": "function_call", "name": "f"}]), "'input[0].call_id' is missing"),
        (body(tools=[{"type": "web_search"}]), "'tools[0]' is of type 'web_search'"),
        (body(tools=[{"type": "function"}]), "'tools[0].name' is missing"),
        (body(tools=[{"type": "function", "name": "f", "defer_loading": True}]), "'tools[0].defer_loading'"),
        (body(tool_choice={"type": "file_search"}), "'tool_choice' must be auto, none, required or a function"),
        (body(include=["x"]), "'include': 'x' cannot be included"),
        (body(max_output_tokens="5"), "'max_output_tokens' must be an integer"),
        (body(text={"format": "json"}), "'text.format' must be an object"),
    ],
)
def test_what_is_refused(given, report):
    """A malformed request, or one that needs stored responses, is rejected; the error names the field."""
    with pytest.raises(GatewayError) as refused:
        read_request(given)
    assert refused.value.kind is ErrorKind.BAD_REQUEST
    assert report in refused.value.message


def test_a_prompt():
    """A plain prompt becomes the input."""
    report = written(Generation("x", "Once", stream=True))
    assert report == {"model": "m", "input": "Once", "store": False, "stream": True}


@pytest.mark.parametrize(
    ("generation", "name"),
    [
        (Generation("x", "p", options={"n": 2}), "n"),
        (Generation("x", "p", options={"presence_penalty": 1}), "presence_penalty"),
        (
            Generation(
                "x", messages=(Message("user", (Text("a"),), name="ann"), Message("user", (Text("b"),), name="ben"))
            ),
            "messages.name",
        ),
    ],
)
def test_what_has_no_place(generation, name):
    """An option that the API lacks is rejected by name, or dropped if the engine's rule allows it."""
    with pytest.raises(GatewayError, match=f"'{name}' cannot be told to an OpenAI responses engine") as refused:
        write_request(generation, model="m", drop=False)
    assert refused.value.kind is ErrorKind.UNSUPPORTED
    report, dropped = write_request(generation, model="m", drop=True)
    assert dropped == [name]
    assert set(json.loads(report)) == {"model", "input", "store"}


def test_budget_of_thinking():
    """With `drop`, a thinking budget becomes the nearest effort; a budget of 0 always becomes `none`."""
    generation = Generation("x", "p", options={"thinking_tokens": 1024})
    with pytest.raises(GatewayError, match="'thinking_tokens' cannot be told to an OpenAI responses engine"):
        write_request(generation, model="m", drop=False)
    report, dropped = write_request(generation, model="m", drop=True)
    assert (json.loads(report)["reasoning"], dropped) == ({"effort": "low"}, ["thinking_tokens"])
    report, dropped = write_request(Generation("x", "p", options={"thinking_tokens": 0}), model="m", drop=False)
    assert (json.loads(report)["reasoning"], dropped) == ({"effort": "none"}, [])


@pytest.mark.parametrize(
    "generation",
    [
        Generation("x", [1, 2]),
        Generation("x", messages=(Message("user", (Media("audio", "https://a.example/b.wav"),)),)),
        Generation("x", messages=(Message("assistant", (Media("image", PNG),)),)),
        Generation("x", messages=(Message("user", (Reasoning("t"),)),)),
    ],
)
def test_content_is_never_dropped(generation):
    """Content that the API cannot express is rejected, even with `drop`."""
    with pytest.raises(GatewayError) as refused:
        write_request(generation, model="m", drop=True)
    assert refused.value.kind is ErrorKind.UNSUPPORTED
