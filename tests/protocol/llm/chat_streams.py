"""Recorded chat completion streams of several servers, with the events they mean."""

from __future__ import annotations

import json

from gateway.protocol.llm.canonical import (
    EngineFailed,
    Event,
    Finished,
    ReasoningDelta,
    Started,
    TextDelta,
    TokenUsage,
    ToolCallDelta,
)

BEGUN = Started("c", "m", 9)


def chunk(choices: str, more: str = "") -> str:
    return (
        f'data: {{"id":"c","object":"chat.completion.chunk","created":9,"model":"m","choices":[{choices}]{more}}}\n\n'
    )


def delta(fields: str, reason: str = "null", index: int = 0) -> str:
    return chunk(f'{{"index":{index},"delta":{{{fields}}},"logprobs":null,"finish_reason":{reason}}}')


DONE = "data: [DONE]\n\n"
STOP = delta("", '"stop"')
LOGPROBS = [{"token": "a", "logprob": -0.5, "bytes": [97], "top_logprobs": []}]

STREAMS: dict[str, tuple[str, list[Event]]] = {
    "OpenAI's": (
        delta('"role":"assistant","content":"","refusal":null')
        + delta('"content":"a"')
        + delta('"content":"b"')
        + STOP
        + chunk("", ',"usage":{"prompt_tokens":3,"completion_tokens":2,"total_tokens":5}')
        + DONE,
        [BEGUN, TextDelta("a"), TextDelta("b"), Finished("stop"), TokenUsage(3, 2)],
    ),
    "vLLM's, with usage null or running, and its reason": (
        chunk('{"index":0,"delta":{"role":"assistant","content":""}}', ',"usage":null')
        + chunk('{"index":0,"delta":{"content":"a"}}', ',"usage":{"prompt_tokens":3,"completion_tokens":1}')
        + chunk(
            '{"index":0,"delta":{"content":"b"},"finish_reason":"stop","stop_reason":"END"}',
            ',"usage":{"prompt_tokens":3,"completion_tokens":2}',
        )
        + DONE,
        [BEGUN, TextDelta("a"), TextDelta("b"), Finished("stop", 0, "END"), TokenUsage(3, 2)],
    ),
    "SGLang's reason": (
        chunk('{"index":0,"delta":{"content":"a"},"finish_reason":"stop","matched_stop":"END"}')
        + chunk('{"index":1,"delta":{"content":"b"},"finish_reason":"stop","matched_stop":151645}')
        + DONE,
        [BEGUN, TextDelta("a"), Finished("stop", 0, "END"), TextDelta("b", 1), Finished("stop", 1)],
    ),
    "Ollama's, with the role each time": (
        delta('"role":"assistant","content":"a"') + delta('"role":"assistant","content":""', '"length"') + DONE,
        [BEGUN, TextDelta("a"), Finished("length")],
    ),
    "content null, pings, empty data and lines that end with CR LF": (
        ": ping\r\n\r\n" + delta('"role":"assistant","content":null') + "data:\r\n\r\n" + delta('"content":"a"') + STOP,
        [BEGUN, TextDelta("a"), Finished("stop")],
    ),
    "no [DONE], nor an empty line at the end": (
        (delta('"content":"a"') + STOP).removesuffix("\n\n"),
        [BEGUN, TextDelta("a"), Finished("stop")],
    ),
    "[DONE] without a reason": (delta('"content":"a"') + DONE, [BEGUN, TextDelta("a"), Finished("stop")]),
    "cut off": (delta('"content":"a"'), [BEGUN, TextDelta("a")]),
    "cut off amid a chunk": (delta('"content":"a"') + STOP[:60], [BEGUN, TextDelta("a")]),
    "one of two choices is cut off": (
        delta('"content":"a"') + delta('"content":"b"', "null", 1) + STOP,
        [BEGUN, TextDelta("a"), TextDelta("b", 1), Finished("stop")],
    ),
    "several choices": (
        delta('"content":"a"')
        + delta('"content":"b"', "null", 1)
        + delta("", '"length"', 1)
        + chunk('{"index":0,"delta":{"content":"c"}},{"index":0,"delta":{},"finish_reason":"content_filter"}')
        + DONE,
        [BEGUN, TextDelta("a"), TextDelta("b", 1), Finished("length", 1), TextDelta("c"), Finished("content_filter")],
    ),
    "thoughts": (
        delta('"reasoning_content":"x"')
        + delta('"reasoning":"y","content":null')
        + delta('"content":"a"')
        + delta('"reasoning":"z","reasoning_content":"z"')
        + STOP
        + DONE,
        [
            *(BEGUN, ReasoningDelta("x"), ReasoningDelta("y"), TextDelta("a"), ReasoningDelta("z")),
            Finished("stop"),
        ],
    ),
    "thoughts in parts, as Mistral has it": (
        delta(
            '"content":[{"type":"thinking","thinking":[{"type":"text","text":"x"}]},{"type":"text","text":"a"}]',
            '"stop"',
        )
        + DONE,
        [BEGUN, ReasoningDelta("x"), TextDelta("a"), Finished("stop")],
    ),
    "a refusal": (
        delta('"refusal":"no"') + STOP + DONE,
        [BEGUN, TextDelta("no"), Finished("content_filter")],
    ),
    "a call in pieces": (
        delta('"tool_calls":[{"index":0,"id":"1","type":"function","function":{"name":"f","arguments":""}}]')
        + delta('"tool_calls":[{"index":0,"function":{"arguments":"{}"}}]')
        + delta('"tool_calls":[{"index":1,"id":"2","function":{"name":"g"}}]')
        + delta('"tool_calls":[{"index":1,"id":"2","function":{"name":"g","arguments":"[]"}}]')
        + delta("", '"tool_calls"')
        + DONE,
        [
            *(BEGUN, ToolCallDelta(0, "1", "f"), ToolCallDelta(0, arguments="{}")),
            *(ToolCallDelta(1, "2", "g"), ToolCallDelta(1, arguments="[]"), Finished("tool_calls")),
        ],
    ),
    "calls under one number, with their arguments as objects, and a reason of none": (
        delta('"tool_calls":[{"index":0,"id":"1","function":{"name":"f","arguments":{"a":1}}}]')
        + delta('"tool_calls":[{"index":0,"id":"2","function":{"name":"f","arguments":"{}"}}]')
        + STOP
        + DONE,
        [BEGUN, ToolCallDelta(0, "1", "f", '{"a":1}'), ToolCallDelta(1, "2", "f", "{}"), Finished("tool_calls")],
    ),
    "calls without numbers": (
        delta('"tool_calls":[{"function":{"name":"f","arguments":"{"}}]')
        + delta('"tool_calls":[{"function":{"arguments":"}"}},{"id":"2","function":{"name":"g","arguments":"{}"}}]')
        + delta("", '"tool_calls"')
        + DONE,
        [
            *(BEGUN, ToolCallDelta(0, "", "f", "{"), ToolCallDelta(0, arguments="}")),
            *(ToolCallDelta(1, "2", "g", "{}"), Finished("tool_calls")),
        ],
    ),
    "a call of a function": (
        delta('"function_call":{"name":"f","arguments":"{"}')
        + delta('"function_call":{"arguments":"}"}')
        + delta("", '"function_call"')
        + DONE,
        [BEGUN, ToolCallDelta(0, "", "f", "{"), ToolCallDelta(0, arguments="}"), Finished("tool_calls")],
    ),
    "logprobs": (
        chunk(f'{{"index":0,"delta":{{"content":"a"}},"logprobs":{{"content":{json.dumps(LOGPROBS)}}}}}') + STOP + DONE,
        [BEGUN, TextDelta("a", 0, LOGPROBS), Finished("stop")],
    ),
    "Azure's filters before all, and llama.cpp's timings after": (
        'data: {"id":"","choices":[],"prompt_filter_results":[]}\n\n'
        + delta('"content":"a"', '"stop"')
        + 'data: {"timings":{}}\n\n'
        + DONE,
        [Started(), TextDelta("a"), Finished("stop")],
    ),
    "an error": (
        delta('"content":"a"') + 'data: {"error":{"message":"no","type":"x","code":503}}\n\n' + STOP + DONE,
        [BEGUN, TextDelta("a"), EngineFailed("no", 503, "503")],
    ),
    "an error's event": (
        delta('"content":"a"') + 'event: error\ndata: {"error":{"message":"no","type":"overloaded"}}\n\n',
        [BEGUN, TextDelta("a"), EngineFailed("no", 500, "overloaded")],
    ),
    "an error of TGI's": (
        'data: {"error":"too long","error_type":"validation"}\n\n',
        [EngineFailed("too long", 500, "")],
    ),
    "an error of vLLM's of old": (
        'data: {"object":"error","message":"no","type":"BadRequestError","param":null,"code":400}\n\n' + DONE,
        [EngineFailed("no", 400, "400")],
    ),
    "the engine gave up": (
        delta('"content":"a"') + delta("", '"abort"') + DONE,
        [BEGUN, TextDelta("a"), EngineFailed("the engine ended its reply with 'abort'", 502, "abort")],
    ),
    "nothing at all": ("", []),
}
