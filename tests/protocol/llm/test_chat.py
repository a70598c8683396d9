"""Reading chat completion requests from clients, and writing them for engines."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.protocol.llm.canonical import Generation, Media, Message, Reasoning, Text, Tool, ToolCall
from gateway.protocol.llm.chat_request import read_request, write_request

USER = '{"role":"user","content":"hi"}'
HI = Message("user", (Text("hi"),))


def read(messages: str = USER, more: str = "") -> Generation:
    return read_request(f'{{"model":"m","messages":[{messages}]{more}}}'.encode())


# The client's message, the parsed message, and the message sent to the engine (None: the client's).
MESSAGES: dict[str, tuple[str, Message, str | None]] = {
    "a text": (USER, HI, None),
    "a text among parts": (
        '{"role":"user","content":[{"type":"text","text":"hi"}]}',
        HI,
        USER,
    ),
    "bare strings as parts": (
        '{"role":"user","content":["hi",{"type":"input_text","text":"ho"}]}',
        Message("user", (Text("hi"), Text("ho"))),
        '{"role":"user","content":[{"type":"text","text":"hi"},{"type":"text","text":"ho"}]}',
    ),
    "the system": ('{"role":"system","content":"s"}', Message("system", (Text("s"),)), None),
    "the developer": (
        '{"role":"developer","content":"s","name":"boss"}',
        Message("developer", (Text("s"),), name="boss"),
        '{"role":"system","content":"s","name":"boss"}',
    ),
    "an image": (
        '{"role":"user","content":[{"type":"image_url","image_url":{"url":"data:image/png;base64,AA==","detail":"low"}}]}',
        Message("user", (Media("image", "data:image/png;base64,AA==", {"detail": "low"}),)),
        None,
    ),
    "an image, as LangChain once had it": (
        '{"role":"user","content":[{"type":"image_url","image_url":"http://host/a.png"}]}',
        Message("user", (Media("image", "http://host/a.png"),)),
        '{"role":"user","content":[{"type":"image_url","image_url":{"url":"http://host/a.png"}}]}',
    ),
    "a sound": (
        '{"role":"user","content":[{"type":"input_audio","input_audio":{"data":"AA==","format":"wav"}}]}',
        Message("user", (Media("audio", "data:audio/wav;base64,AA==", {"format": "wav"}),)),
        None,
    ),
    "a sound by its address, as vLLM has it": (
        '{"role":"user","content":[{"type":"audio_url","audio_url":{"url":"http://host/a.wav"}}]}',
        Message("user", (Media("audio", "http://host/a.wav"),)),
        None,
    ),
    "a file": (
        '{"role":"user","content":[{"type":"file","file":{"file_data":"data:application/pdf;base64,AA==","filename":"a"}}]}',
        Message("user", (Media("file", "data:application/pdf;base64,AA==", {"filename": "a"}),)),
        None,
    ),
    "a file that the engine has": (
        '{"role":"user","content":[{"type":"file","file":{"file_id":"f1"}}]}',
        Message("user", (Media("file", "", {"file_id": "f1"}),)),
        None,
    ),
    "calls, with null for content": (
        '{"role":"assistant","content":null,"tool_calls":[{"id":"1","type":"function","function":{"name":"f","arguments":"{}"}}]}',
        Message("assistant", (), (ToolCall("1", "f", "{}"),)),
        None,
    ),
    "a call beside a text, with its arguments as an object": (
        '{"role":"assistant","content":"so","tool_calls":[{"id":"1","function":{"name":"f","arguments":{"a":1}}}]}',
        Message("assistant", (Text("so"),), (ToolCall("1", "f", '{"a":1}'),)),
        '{"role":"assistant","content":"so","tool_calls":[{"id":"1","type":"function","function":{"name":"f","arguments":"{\\"a\\":1}"}}]}',
    ),
    "a tool's result": (
        '{"role":"tool","content":"5","tool_call_id":"1"}',
        Message("tool", (Text("5"),), (), "1"),
        None,
    ),
    "thoughts": (
        '{"role":"assistant","content":"5","reasoning_content":"2+3"}',
        Message("assistant", (Reasoning("2+3"), Text("5"))),
        None,
    ),
    "thoughts by vLLM's and OpenRouter's name": (
        '{"role":"assistant","content":"5","reasoning":"2+3"}',
        Message("assistant", (Reasoning("2+3"), Text("5"))),
        '{"role":"assistant","content":"5","reasoning_content":"2+3"}',
    ),
    "what it refused by": (
        '{"role":"assistant","content":null,"refusal":"no"}',
        Message("assistant", (Text("no"),)),
        '{"role":"assistant","content":"no"}',
    ),
    "what it refused by, as a part": (
        '{"role":"assistant","content":[{"type":"refusal","refusal":"no"}]}',
        Message("assistant", (Text("no"),)),
        '{"role":"assistant","content":"no"}',
    ),
    "nothing": ('{"role":"assistant","content":""}', Message("assistant"), None),
}


@pytest.mark.parametrize("given, message, written", MESSAGES.values(), ids=MESSAGES)
def test_messages_are_read_and_written(given: str, message: Message, written: str | None) -> None:
    """Every kind of message that clients send is forwarded to the engine."""
    generation = read(given)
    assert generation.messages == (message,)
    body, lost = write_request(generation, model="m", drop=False)
    assert json.loads(body) == {"model": "m", "messages": [json.loads(written or given)]}
    assert lost == []


@pytest.mark.parametrize("media_type, form", [("audio/mpeg", "mp3"), ("audio/x-wav", "wav"), ("audio/flac", "flac")])
def test_a_sound_is_told_by_the_name_of_its_format(media_type: str, form: str) -> None:
    """An audio media type is written as the format name that OpenAI's API uses."""
    sound = Message("user", (Media("audio", f"data:{media_type};base64,AA=="),))
    reply = json.loads(write_request(Generation("m", messages=(sound,)), model="m", drop=False)[0])
    assert reply["messages"][0]["content"] == [{"type": "input_audio", "input_audio": {"data": "AA==", "format": form}}]


FORMAT = {"type": "json_schema", "json_schema": {"name": "output", "schema": {"type": "object"}}}
# The client's fields, the parsed options and the fields sent to the engine (None: the client's).
OPTIONS: dict[str, tuple[str, dict[str, Any] | None, str | None]] = {
    "numbers": (
        '"temperature":0.5,"top_p":1,"seed":7,"max_tokens":9,"n":2',
        None,
        None,
    ),
    "the newer name of the bound": ('"max_completion_tokens":9', {"max_tokens": 9}, '"max_tokens":9'),
    "both names": ('"max_tokens":5,"max_completion_tokens":9', {"max_tokens": 9}, '"max_tokens":9'),
    "whole numbers as floats": ('"max_tokens":9.0', {"max_tokens": 9}, '"max_tokens":9'),
    "one stop": ('"stop":"a"', {"stop": ["a"]}, '"stop":["a"]'),
    "stops": ('"stop":["a","b"]', {"stop": ["a", "b"]}, None),
    "nulls and what says nothing": (
        '"stop":null,"n":1,"logprobs":false,"top_logprobs":null,"presence_penalty":0,"frequency_penalty":0.0,'
        '"logit_bias":{},"tools":null,"functions":[],"tool_choice":"auto","parallel_tool_calls":true,"user":null,'
        '"response_format":{"type":"text"},"stream":false,"stream_options":null,"store":false,"stop_token_ids":[]',
        {},
        "",
    ),
    "zero counts where it says something": (
        '"temperature":0,"top_k":0,"seed":0',
        None,
        None,
    ),
    "what engines added": (
        '"top_k":5,"min_p":0.1,"repetition_penalty":1.1,"stop_token_ids":[1],"min_tokens":2,"ignore_eos":true,'
        '"bad_words":["x"],"skip_special_tokens":false,"priority":3,"guided_regex":"a+","chat_template_kwargs":{"a":1}',
        None,
        None,
    ),
    "llama.cpp's names": (
        '"repeat_penalty":1.1,"n_predict":4',
        {"repetition_penalty": 1.1, "max_tokens": 4},
        '"repetition_penalty":1.1,"max_tokens":4',
    ),
    "logprobs": ('"logprobs":true', {"logprobs": 0}, None),
    "logprobs of alternatives": ('"logprobs":true,"top_logprobs":3', {"logprobs": 3}, None),
    "JSON": ('"response_format":{"type":"json_object"}', {"response_format": {"type": "json_object"}}, None),
    "a schema": (
        '"response_format":{"type":"json_schema","json_schema":{"name":"n","schema":{"type":"object"},"strict":true}}',
        None,
        None,
    ),
    "vLLM's schema": ('"guided_json":{"type":"object"}', {"response_format": FORMAT}, "format"),
    "vLLM's schema as a string": (r'"guided_json":"{\"type\":\"object\"}"', {"response_format": FORMAT}, "format"),
    "vLLM's newer schema": ('"structured_outputs":{"json":{"type":"object"}}', {"response_format": FORMAT}, "format"),
    "llama.cpp's schema": (
        '"response_format":{"type":"json_object","schema":{"type":"object"}}',
        {"response_format": FORMAT},
        "format",
    ),
    "TGI's schema": (
        '"response_format":{"type":"json","value":{"type":"object"}}',
        {"response_format": FORMAT},
        "format",
    ),
    "effort": ('"reasoning_effort":"low"', {"reasoning_effort": "low"}, None),
    "OpenRouter's effort": ('"reasoning":{"effort":"low"}', {"reasoning_effort": "low"}, '"reasoning_effort":"low"'),
    "no thinking": ('"thinking":{"type":"disabled"}', {"thinking_tokens": 0}, '"reasoning_effort":"none"'),
    "vLLM's word for any thinking": ('"thinking_token_budget":-1', {}, ""),
}


@pytest.mark.parametrize("given, options, written", OPTIONS.values(), ids=OPTIONS)
def test_options_are_read_and_written(given: str, options: dict[str, Any] | None, written: str | None) -> None:
    """Each option is read under its canonical name and sent to the engine under the name that engines use."""
    generation = read(more="," + given)
    assert generation.options == (json.loads(f"{{{given}}}") if options is None else options)
    body, lost = write_request(generation, model="m", drop=False)
    if written == "format":
        written = '"response_format":' + json.dumps(FORMAT)
    rest = given if written is None else written
    assert json.loads(body) == json.loads(f'{{"model":"m","messages":[{USER}]{rest and "," + rest}}}')
    assert lost == []


TOOL = (
    '{"type":"function","function":{"name":"f","description":"d","parameters":{"type":"object","properties":{"a":{}}}}}'
)
F = Tool("f", "d", {"type": "object", "properties": {"a": {}}})
NAMED = {"type": "function", "function": {"name": "f"}}
TOOLS: dict[str, tuple[str, Any]] = {
    "tools": (f'"tools":[{TOOL}]', None),
    "a tool, flat as in responses": (
        '"tools":[{"type":"function","name":"f","description":"d","parameters":{"type":"object","properties":{"a":{}}}}]',
        None,
    ),
    "one must be called": (f'"tools":[{TOOL}],"tool_choice":"required"', "required"),
    "LangChain's and Mistral's word": (f'"tools":[{TOOL}],"tool_choice":"any"', "required"),
    "this one must be called": (
        f'"tools":[{TOOL}],"tool_choice":{{"type":"function","function":{{"name":"f"}}}}',
        NAMED,
    ),
    "functions": (
        '"functions":[{"name":"f","description":"d","parameters":{"type":"object","properties":{"a":{}}}}]',
        None,
    ),
    "a function must be called": (
        '"functions":[{"name":"f","description":"d","parameters":{"type":"object","properties":{"a":{}}}}],'
        '"function_call":{"name":"f"}',
        NAMED,
    ),
}


@pytest.mark.parametrize("given, choice", TOOLS.values(), ids=TOOLS)
def test_tools_are_read_and_written(given: str, choice: Any) -> None:
    """Tools and the older `functions` are read alike and written as tools."""
    generation = read(more="," + given)
    assert generation.tools == (F,)
    assert generation.options.get("tool_choice") == choice
    reply = json.loads(write_request(generation, model="m", drop=False)[0])
    assert reply["tools"] == [json.loads(TOOL)]
    assert reply.get("tool_choice") == choice


def test_a_tool_without_parameters_has_an_empty_schema() -> None:
    """A tool without parameters gets an empty schema, which engines require; `strict` is kept if the client set it."""
    generation = read(more=',"tools":[{"type":"function","function":{"name":"f","strict":false}}]')
    reply = json.loads(write_request(generation, model="m", drop=False)[0])["tools"][0]["function"]
    assert reply == {"name": "f", "parameters": {"type": "object", "properties": {}}, "strict": False}


def test_calls_of_functions_are_matched_with_their_results() -> None:
    """A function result without an id gets the id of the last call of that function."""
    call = '{"role":"assistant","content":null,"function_call":{"name":"f","arguments":"{}"}}'
    answer = '{"role":"function","name":"f","content":"5"}'
    messages = read(f"{USER},{call},{answer}").messages
    assert messages[1].tool_calls == (ToolCall("call_1", "f", "{}"),)
    assert messages[2] == Message("tool", (Text("5"),), (), "call_1", "f")


@pytest.mark.parametrize(
    "more, stream, include_usage",
    [
        ("", False, False),
        (',"stream":true', True, False),
        (',"stream":true,"stream_options":{"include_usage":true,"include_obfuscation":false}', True, True),
        (',"stream_options":{"include_usage":true}', False, False),
    ],
)
def test_a_stream_always_asks_the_engine_for_usage(more: str, stream: bool, include_usage: bool) -> None:
    """The gateway always requests usage from the engine for streams, even if the client does not."""
    generation = read(more=more)
    assert (generation.stream, generation.include_usage) == (stream, include_usage)
    reply = json.loads(write_request(generation, model="m", drop=False)[0])
    assert reply.get("stream") == (True if stream else None)
    assert reply.get("stream_options") == ({"include_usage": True} if stream else None)


def test_a_prompt_becomes_a_message_of_the_user() -> None:
    """A plain prompt becomes a user message; a generation that also has messages sends those."""
    body, _ = write_request(Generation("a", prompt="hi"), model="m", drop=False)
    assert json.loads(body) == {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
    body, _ = write_request(Generation("a", prompt="<s>hi", messages=(HI,)), model="m", drop=False)
    assert json.loads(body)["messages"] == [{"role": "user", "content": "hi"}]
