"""Chat completion requests that are rejected because they are malformed or unsupported."""

from __future__ import annotations

import json

import pytest

from gateway.protocol.errors import ErrorKind, GatewayError
from gateway.protocol.llm.canonical import Generation, Media, Message
from gateway.protocol.llm.chat_request import read_request, write_request

USER = '{"role":"user","content":"hi"}'


def read(messages: str = USER, more: str = "") -> Generation:
    return read_request(f'{{"model":"m","messages":[{messages}]{more}}}'.encode())


REFUSED: dict[str, tuple[Generation, str]] = {
    "token ids": (Generation("m", prompt=[1, 2]), "token ids"),
    "what only completions have": (Generation("m", "a", options={"suffix": "b", "echo": True}), "'suffix', 'echo'"),
    "a field that nobody knows": (read(more=',"frobnicate":1'), "'frobnicate'"),
    "sound in the reply": (read(more=',"modalities":["text","audio"]'), "'modalities'"),
    "usage in every chunk": (
        read(more=',"stream":true,"stream_options":{"continuous_usage_stats":true}'),
        "'stream_options.continuous_usage_stats'",
    ),
    "a budget of thinking": (Generation("m", "a", options={"thinking_tokens": 2000}), "'thinking_tokens'"),
    "logprobs of the prompt, for which replies have no place": (read(more=',"prompt_logprobs":1'), "'prompt_logprobs'"),
    "a file by its address": (
        Generation("m", messages=(Message("user", (Media("file", "http://host/a.pdf"),)),)),
        "a file by its address",
    ),
}


@pytest.mark.parametrize("generation, named", REFUSED.values(), ids=REFUSED)
def test_what_an_engine_has_no_place_for_is_refused_by_name(generation: Generation, named: str) -> None:
    """An option that the engine does not support is rejected by name, not dropped silently."""
    with pytest.raises(GatewayError, match=named) as refused:
        write_request(generation, model="m", drop=False)
    assert refused.value.kind is ErrorKind.UNSUPPORTED


@pytest.mark.parametrize("tokens, effort", [(1024, "low"), (4096, "medium"), (32000, "high")])
def test_a_budget_of_thinking_becomes_an_effort_where_its_number_may_be_dropped(tokens: int, effort: str) -> None:
    """With `drop`, a thinking budget becomes a reasoning effort and is listed as dropped; an explicit effort is
    kept."""
    options = {"thinking_tokens": tokens, "suffix": "x"}
    body, lost = write_request(Generation("m", "a", options=options), model="m", drop=True)
    assert json.loads(body)["reasoning_effort"] == effort
    assert lost == ["thinking_tokens", "suffix"]
    options |= {"reasoning_effort": "minimal"}
    body, _ = write_request(Generation("m", "a", options=options), model="m", drop=True)
    assert json.loads(body)["reasoning_effort"] == "minimal"


MALFORMED = {
    "{": "not JSON",
    "[]": "must be a JSON object",
    '{"messages":[]}': "'model' is missing",
    '{"model":1,"messages":[]}': "'model' must be a string",
    '{"model":"m"}': "'messages' is missing",
    '{"model":"m","messages":[]}': "at least one message",
    '{"model":"m","messages":"hi"}': "'messages' must be a list",
    '{"model":"m","messages":["hi"]}': "'messages\\[0\\]' must be an object",
    '{"model":"m","messages":[{"content":"hi"}]}': "'messages\\[0\\].role' is missing",
    '{"model":"m","messages":[{"role":"bot","content":"hi"}]}': "must be one of system, .* not 'bot'",
    '{"model":"m","messages":[{"role":"user","content":5}]}': "'messages\\[0\\].content' must be a list",
    '{"model":"m","messages":[{"role":"user","content":[{"type":"text"}]}]}': "content\\[0\\].text' is missing",
    '{"model":"m","messages":[{"role":"user","content":[{"type":"image_url"}]}]}': "image_url' must be an object",
    '{"model":"m","messages":[{"role":"tool","content":"5"}]}': "tool_call_id' is missing",
    '{"model":"m","messages":[{"role":"assistant","tool_calls":[{"id":"1"}]}]}': "function' is missing",
    '{"model":"m","messages":[{"role":"assistant","audio":{"id":"1"}}]}': "audio' is known to one engine alone",
    **{
        f'{{"model":"m","messages":[{USER}],{more}}}': what
        for more, what in {
            '"stream":"yes"': "'stream' must be true or false",
            '"temperature":"hot"': "'temperature' must be a number",
            '"max_tokens":1.5': "'max_tokens' must be an integer",
            '"max_completion_tokens":"9"': "'max_completion_tokens' must be an integer",
            '"n":true': "'n' must be an integer",
            '"stop":[1]': "'stop\\[0\\]' must be a string",
            '"logprobs":5': "'logprobs' must be true or false",
            '"top_logprobs":5': "needs 'logprobs'",
            '"tool_choice":"maybe"': "'tool_choice' must be auto",
            '"tools":[{"type":"function"}]': "'tools\\[0\\].function' is missing",
            '"tools":[{"type":"function","function":{}}]': "'tools\\[0\\].function.name' is missing",
            '"response_format":{"type":"json_schema"}': "'response_format.json_schema' is missing",
            '"guided_json":"{"': "'guided_json' is not a JSON schema",
            '"guided_json":{},"response_format":{"type":"json_object"}': "both say what form",
        }.items()
    },
}


@pytest.mark.parametrize("body, what", MALFORMED.items(), ids=MALFORMED)
def test_what_is_malformed_is_named(body: str, what: str) -> None:
    """The error names the malformed field and what is expected."""
    with pytest.raises(GatewayError, match=what) as refused:
        read_request(body.encode())
    assert refused.value.kind is ErrorKind.BAD_REQUEST


@pytest.mark.parametrize(
    "more, messages, what",
    [
        (',"tools":[{"type":"custom","custom":{"name":"f"}}]', USER, "'tools\\[0\\].type' is 'custom'"),
        ("", '{"role":"user","content":[{"type":"video_url","video_url":{"url":"x"}}]}', "is 'video_url'"),
        ("", '{"role":"assistant","tool_calls":[{"id":"1","type":"custom","custom":{}}]}', "type' is 'custom'"),
    ],
)
def test_what_only_one_engine_knows_is_refused(more: str, messages: str, what: str) -> None:
    """Content types that the gateway cannot translate are unsupported."""
    with pytest.raises(GatewayError, match=what) as refused:
        read(messages, more)
    assert refused.value.kind is ErrorKind.UNSUPPORTED
