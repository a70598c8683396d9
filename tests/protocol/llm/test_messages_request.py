"""Reading requests of Anthropic's messages API from clients, and writing them for engines."""

import json

import pytest

from gateway.protocol.errors import ErrorKind, GatewayError
from gateway.protocol.llm.canonical import Generation, Media, Message, Reasoning, Text, Tool, ToolCall
from gateway.protocol.llm.messages_request import DEFAULT_MAX_TOKENS, read_request, write_request

HI = {"role": "user", "content": "Hi"}
USER = Message("user", (Text("Hi"),))


def body(**fields) -> bytes:
    return json.dumps({"model": "m", "max_tokens": 5, "messages": [HI], **fields}).encode()


def user(*blocks) -> dict:
    return {"messages": [{"role": "user", "content": list(blocks)}]}


def assistant(*blocks) -> dict:
    return {"messages": [HI, {"role": "assistant", "content": list(blocks)}]}


def written(generation: Generation, drop: bool = False) -> dict:
    return json.loads(write_request(generation, model="m", drop=drop)[0])


OPTIONS = [
    ({"temperature": 0.5, "top_p": 1, "top_k": 3}, {"temperature": 0.5, "top_p": 1, "top_k": 3}),
    ({"stop_sequences": ["a", "b"]}, {"stop": ["a", "b"]}),
    ({"metadata": {"user_id": "u"}}, {"user": "u"}),
    ({"thinking": {"type": "enabled", "budget_tokens": 1024}}, {"thinking_tokens": 1024}),
    ({"thinking": {"type": "disabled"}}, {"thinking_tokens": 0}),
    ({"output_config": {"effort": "high"}}, {"reasoning_effort": "high"}),
    (
        {"output_config": {"format": {"type": "json_schema", "schema": {"type": "object"}}}},
        {
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "output", "schema": {"type": "object"}},
            }
        },
    ),
]


@pytest.mark.parametrize(("given", "options"), OPTIONS)
def test_options_both_ways(given, options):
    """An option is read under its canonical name and written under Anthropic's."""
    generation = read_request(body(**given))
    assert generation.options == {"max_tokens": 5, **options}
    assert written(generation) == json.loads(body(**given))


@pytest.mark.parametrize(
    ("given", "options"),
    [
        ({"thinking": {"type": "adaptive", "display": "summarized"}}, {}),
        ({"cache_control": {"type": "ephemeral"}, "service_tier": "auto", "stop_sequences": []}, {}),
        ({"min_p": 0.1, "container": None}, {"min_p": 0.1}),
        ({"service_tier": "priority"}, {"service_tier": "priority"}),
        ({"thinking": {"type": "adaptive", "display": "omitted"}}, {"thinking.display": "omitted"}),
        ({"output_config": {"task_budget": 3}}, {"output_config.task_budget": 3}),
    ],
)
def test_options_that_are_anthropic_s_alone(given, options):
    """Options without an effect are ignored; unknown options keep their name, so that the engine's writer can reject
    them."""
    assert read_request(body(**given)).options == {"max_tokens": 5, **options}


CHOICES = [
    ({"type": "auto"}, {"tool_choice": "auto"}),
    ({"type": "any"}, {"tool_choice": "required"}),
    ({"type": "none"}, {"tool_choice": "none"}),
    ({"type": "tool", "name": "f"}, {"tool_choice": {"type": "function", "function": {"name": "f"}}}),
    ({"type": "auto", "disable_parallel_tool_use": True}, {"tool_choice": "auto", "parallel_tool_calls": False}),
]


@pytest.mark.parametrize(("choice", "options"), CHOICES)
def test_tools_both_ways(choice, options):
    """Tools and the tool choice are read and written."""
    tools = [
        {"name": "f", "description": "d", "input_schema": {"type": "object", "properties": {}}},
        {"name": "g", "input_schema": {"type": "object"}, "strict": True},
    ]
    given = body(tools=tools, tool_choice=choice)
    generation = read_request(given)
    assert generation.tools == (
        Tool("f", "d", {"type": "object", "properties": {}}),
        Tool("g", "", {"type": "object"}, True),
    )
    assert generation.options == {"max_tokens": 5, **options}
    assert written(generation) == json.loads(given)


PNG, PDF = "data:image/png;base64,iVBORw==", "data:application/pdf;base64,JVBE"
CONTENT = [
    ({"system": "Be brief."}, [Message("system", (Text("Be brief."),)), USER]),
    (
        {"system": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        [Message("system", (Text("a"), Text("b"))), USER],
    ),
    (
        user(
            {"type": "text", "text": "what?"},
            {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "iVBORw=="}},
            {"type": "image", "source": {"type": "url", "url": "https://a.example/b.png"}},
        ),
        [Message("user", (Text("what?"), Media("image", PNG), Media("image", "https://a.example/b.png")))],
    ),
    (
        user(
            {
                "type": "document",
                "source": {"type": "base64", "media_type": "application/pdf", "data": "JVBE"},
                "title": "a.pdf",
            },
            {"type": "document", "source": {"type": "url", "url": "https://a.example/b.pdf"}},
        ),
        [Message("user", (Media("file", PDF, {"filename": "a.pdf"}), Media("file", "https://a.example/b.pdf")))],
    ),
    (
        assistant(
            {"type": "thinking", "thinking": "t", "signature": "s"},
            {"type": "redacted_thinking", "data": "x"},
            {"type": "text", "text": "a"},
            {"type": "tool_use", "id": "c", "name": "f", "input": {"x": 1}},
        ),
        [
            USER,
            Message(
                "assistant",
                (Reasoning("t", "s"), Reasoning("", "redacted_thinking:x"), Text("a")),
                (ToolCall("c", "f", '{"x":1}'),),
            ),
        ],
    ),
    (
        user(
            {"type": "tool_result", "tool_use_id": "c", "content": "r"},
            {"type": "tool_result", "tool_use_id": "d", "content": "bad", "is_error": True},
            {
                "type": "tool_result",
                "tool_use_id": "e",
                "content": [
                    {"type": "text", "text": "see"},
                    {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "iVBORw=="}},
                ],
            },
            {"type": "text", "text": "go on"},
        ),
        [
            Message("tool", (Text("r"),), tool_call_id="c"),
            Message("tool", (Text("Error: "), Text("bad")), tool_call_id="d"),
            Message("tool", (Text("see"), Media("image", PNG)), tool_call_id="e"),
            Message("user", (Text("go on"),)),
        ],
    ),
]


@pytest.mark.parametrize(("given", "messages"), CONTENT)
def test_messages_both_ways(given, messages):
    """Every kind of block becomes a message part, and is written as the same block."""
    generation = read_request(body(**given))
    assert generation.messages == tuple(messages)
    assert written(generation) == json.loads(body(**given))


@pytest.mark.parametrize(
    ("source", "parts"),
    [
        ({"type": "text", "media_type": "text/plain", "data": "d"}, (Text("T\n\n"), Text("C\n\n"), Text("d"))),
        ({"type": "content", "content": "d"}, (Text("T\n\n"), Text("C\n\n"), Text("d"))),
        (
            {"type": "content", "content": [{"type": "text", "text": "d"}]},
            (Text("T\n\n"), Text("C\n\n"), Text("d")),
        ),
        (
            {"type": "url", "url": "https://a.example/b.pdf"},
            (Text("C\n\n"), Media("file", "https://a.example/b.pdf", {"filename": "T"})),
        ),
    ],
)
def test_documents(source, parts):
    """A text document becomes text parts that include its title and context; other documents become files."""
    block = {"type": "document", "source": source, "title": "T", "context": "C", "citations": {"enabled": False}}
    assert read_request(body(**user(block))).messages[0].parts == parts


@pytest.mark.parametrize(
    ("given", "report"),
    [
        (b"{", "not JSON"),
        (b"[]", "must be a JSON object"),
        (body(max_tokens=None), "'max_tokens' is missing"),
        (body(max_tokens="5"), "'max_tokens' must be an integer"),
        (body(max_tokens=True), "'max_tokens' must be an integer"),
        (body(model=None), "'model' is missing"),
        (body(messages="Hi"), "'messages' must be a list"),
        (body(messages=[{"role": "tool", "content": "x"}]), "'messages[0].role' must be user or assistant, not 'tool'"),
        (body(messages=[{"role": "user"}]), "'messages[0].content' is missing"),
        (body(**user({"type": "text"})), "'messages[0].content[0].text' is missing"),
        (body(**user({"type": "search_result"})), "'messages[0].content[0]' is a 'search_result' block"),
        (
            body(**user({"type": "image", "source": {"type": "file", "file_id": "f"}})),
            "'messages[0].content[0].source.type' must be base64 or url, not 'file'",
        ),
        (
            body(**user({"type": "document", "citations": {"enabled": True}})),
            "'messages[0].content[0].citations'",
        ),
        (body(tools=[{"type": "web_search_20250305", "name": "web_search"}]), "'tools[0]' is a 'web_search_20250305'"),
        (body(tools=[{"name": "f"}]), "'tools[0].input_schema' is missing"),
        (body(tools=[{"name": "f", "input_schema": {}, "defer_loading": True}]), "'tools[0].defer_loading'"),
        (body(tool_choice={"type": "some"}), "'tool_choice.type' must be auto, any, tool or none, not 'some'"),
        (body(tool_choice={"type": "tool"}), "'tool_choice.name' is missing"),
        (body(thinking={"type": "enabled"}), "'thinking.budget_tokens' is missing"),
        (body(stop_sequences="END"), "'stop_sequences' must be a list"),
        (body(stop_sequences=[1]), "'stop_sequences[0]' must be a string"),
        (body(stream="yes"), "'stream' must be true or false"),
        (body(temperature="hot"), "'temperature' must be a number"),
    ],
)
def test_what_is_refused(given, report):
    """A malformed request is rejected; the error names the field."""
    with pytest.raises(GatewayError) as refused:
        read_request(given)
    assert refused.value.kind is ErrorKind.BAD_REQUEST
    assert report in refused.value.message


@pytest.mark.parametrize(
    ("messages", "turns", "system"),
    [
        ([Message("developer", (Text("d"),)), USER, Message("system", (Text("s"),))], [HI], ["d", "s"]),
        ([USER, USER], [{"role": "user", "content": [{"type": "text", "text": "Hi"}] * 2}], None),
        ([Message("assistant", (), (ToolCall("c", "f", ""),))], None, None),
        ([Message("user", (Text(""),))], [{"role": "user", "content": ""}], None),
    ],
)
def test_turns(messages, turns, system):
    """Consecutive messages of one role are merged, system messages move to `system`, and empty blocks are left out."""
    report = written(Generation("x", None, tuple(messages)))
    call = {"type": "tool_use", "id": "c", "name": "f", "input": {}}
    assert report["messages"] == (turns or [{"role": "assistant", "content": [call]}])
    assert report.get("system") == (system and [{"type": "text", "text": text} for text in system])


def test_a_prompt():
    """A plain prompt becomes a user message with the default max_tokens; `stream` is passed on."""
    report = written(Generation("x", "Once", stream=True))
    once = [{"role": "user", "content": "Once"}]
    assert report == {"model": "m", "messages": once, "max_tokens": DEFAULT_MAX_TOKENS, "stream": True}


@pytest.mark.parametrize(
    ("generation", "name"),
    [
        (Generation("x", "p", options={"seed": 1}), "seed"),
        (Generation("x", "p", options={"n": 2}), "n"),
        (Generation("x", "p", options={"logprobs": 0}), "logprobs"),
        (Generation("x", "p", options={"verbosity": "low"}), "verbosity"),
        (Generation("x", "p", options={"response_format": {"type": "grammar"}}), "response_format grammar"),
        (Generation("x", messages=tuple(Message("user", (Text("a"),), name=name) for name in "ab")), "messages.name"),
    ],
)
def test_what_has_no_place(generation, name):
    """An option that the API lacks is rejected by name, or dropped if the engine's rule allows it."""
    with pytest.raises(GatewayError, match=f"'{name}' cannot be told to an Anthropic messages engine") as refused:
        write_request(generation, model="m", drop=False)
    assert refused.value.kind is ErrorKind.UNSUPPORTED
    report, dropped = write_request(generation, model="m", drop=True)
    assert dropped == [name]
    assert set(json.loads(report)) == {"model", "messages", "max_tokens"}


@pytest.mark.parametrize(
    "generation",
    [
        Generation("x", messages=(Message("user", (Text("a"),), name="ann"), Message("assistant", (Text("b"),)))),
        Generation(
            "x", messages=(Message("user", (Text("a"),), name="a"), Message("assistant", (Text("b"),), name="b"))
        ),
        Generation("x", messages=(Message("user", (Media("image", PNG, {"detail": "high"}),)),)),
        *(
            Generation("x", "p", options=options)
            for options in (
                {"metadata": {"a": "b"}, "store": True, "truncation": "auto"},
                {"prompt_cache_key": "k", "prompt_cache_retention": "24h"},
            )
        ),
    ],
)
def test_what_changes_no_answer(generation):
    """What is for records and caches, a name that distinguishes nobody, and an image's detail are left out."""
    report, dropped = write_request(generation, model="m", drop=False)
    assert dropped == []
    assert set(json.loads(report)) == {"model", "messages", "max_tokens"}


@pytest.mark.parametrize("name", ["user", "safety_identifier"])
def test_whose_request_it_is(name):
    """OpenAI's names for the user become Anthropic's."""
    assert written(Generation("x", "p", options={name: "u"}))["metadata"] == {"user_id": "u"}


@pytest.mark.parametrize(
    ("generation", "kind"),
    [
        (Generation("x", [1, 2]), ErrorKind.UNSUPPORTED),
        (Generation("x", messages=(Message("user", (Media("audio", PNG),)),)), ErrorKind.UNSUPPORTED),
        (Generation("x", messages=(Message("user", (Media("image", "file:///x"),)),)), ErrorKind.BAD_REQUEST),
        (Generation("x", messages=(Message("assistant", (), (ToolCall("c", "f", "{"),)),)), ErrorKind.BAD_REQUEST),
        (Generation("x", messages=(Message("assistant", (), (ToolCall("c", "f", "[]"),)),)), ErrorKind.BAD_REQUEST),
    ],
)
def test_content_is_never_dropped(generation, kind):
    """Content that the API cannot express is rejected, even with `drop`."""
    with pytest.raises(GatewayError) as refused:
        write_request(generation, model="m", drop=True)
    assert refused.value.kind is kind


@pytest.mark.parametrize(
    ("options", "report"),
    [
        ({"reasoning_effort": "none"}, {"thinking": {"type": "disabled"}, "max_tokens": DEFAULT_MAX_TOKENS}),
        ({"reasoning_effort": "minimal", "max_tokens": 3}, {"output_config": {"effort": "low"}, "max_tokens": 3}),
        (
            {"thinking_tokens": 2000},
            {"thinking": {"type": "enabled", "budget_tokens": 2000}, "max_tokens": DEFAULT_MAX_TOKENS + 2000},
        ),
        ({"tool_choice": "auto", "parallel_tool_calls": True}, {"max_tokens": DEFAULT_MAX_TOKENS}),
    ],
)
def test_options_of_other_dialects(options, report):
    """Reasoning efforts and thinking budgets become Anthropic's options; a tool choice without tools is dropped."""
    text = written(Generation("x", "p", options=options))
    assert text == {"model": "m", "messages": [{"role": "user", "content": "p"}], **report}


def test_a_file_of_text():
    """A text file becomes a text document."""
    file = Media("file", "data:text/plain;base64,aGk=", {"filename": "a.txt"})
    [turn] = written(Generation("x", messages=(Message("user", (file,)),)))["messages"]
    source = {"type": "text", "media_type": "text/plain", "data": "hi"}
    assert turn["content"] == [{"type": "document", "source": source, "title": "a.txt"}]
