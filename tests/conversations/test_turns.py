"""Turns as Redis keeps them, and as the admin API exports them."""

import orjson
import pytest

from gateway.conversations.turns import Turn, estimated_tokens, openai_message, read, written
from gateway.protocol.errors import ErrorKind, GatewayError
from gateway.protocol.llm.canonical import Media, Message, Reasoning, Text, ToolCall
from tests.conversations.making import calls, result, said, user

MESSAGES = [
    user("hello"),
    Message("user"),
    user('"tokens":5, "role":"user" \u00e4\u20ac\U0001f600'),
    said("hi"),
    result("c1", "noon"),
    calls("c1", "clock", '{"in":"Paris"}'),
    Message("assistant", (Text("let me see"),), (ToolCall("c1", "clock", ""), ToolCall("c2", "clock", "{}"))),
    Message("user", (Text("what is it?"), Media("image", "data:image/png;base64,AAAA", {"detail": "low"}))),
    Message("user", (Media("audio", "data:audio/wav;base64,AAAA", {"format": "wav"}),)),
    Message("user", (Media("file", "data:application/pdf;base64,AAAA", {"filename": "a.pdf"}),)),
    Message("user", (Text("a"), Text("b")), (), "", "ann"),
]


@pytest.mark.parametrize("message", MESSAGES)
@pytest.mark.parametrize(
    "about", [{}, {"is_estimated": False, "engine": "vllm", "arm": "blue"}, {"is_cut": True, "created": 7}]
)
def test_a_turn_is_read_as_it_was_written(message: Message, about: dict[str, object]) -> None:
    """Whatever a message holds, and whatever is known of the turn."""
    turn = Turn(message, 12, **about)  # type: ignore[arg-type]
    assert read(written(turn)) == turn


def test_a_turn_is_an_openai_message_with_fields_of_ours() -> None:
    """Role and tokens stand first, where Redis' script finds them; an export leaves out what is ours."""
    turn = Turn(said("hi"), 1, 1_700_000_000, False, "vllm", "blue", True)
    assert written(turn) == (
        b'{"role":"assistant","tokens":1,"created":1700000000,"engine":"vllm","arm":"blue","cut":true,"content":"hi"}'
    )
    assert openai_message(orjson.loads(written(turn))) == {"role": "assistant", "content": "hi"}
    assert written(Turn(user("a"), 1)).startswith(b'{"role":"user","tokens":1,"estimated":true,')


def test_thoughts_are_not_kept() -> None:
    """What a model thought is told with its answer alone."""
    turn = Turn(Message("assistant", (Reasoning("hm"), Text("hi"))), 1)
    assert read(written(turn)).message == said("hi")


def test_media_by_an_address_have_no_form() -> None:
    """A file that OpenAI's messages cannot name is refused by name."""
    with pytest.raises(GatewayError, match="file by its address") as refused:
        written(Turn(Message("user", (Media("file", "https://a/b.pdf"),)), 1))
    assert refused.value.kind is ErrorKind.UNSUPPORTED


@pytest.mark.parametrize(
    "message, tokens",
    [
        (user(""), 0),
        (user("four"), 1),
        (user("\u20ac\u20ac"), 2),
        (calls("id", "clock", "{}"), 2),
        (Message("user", (Media("image", "data:image/png;base64," + "A" * 9999),)), 1000),
    ],
)
def test_tokens_are_estimated(message: Message, tokens: int) -> None:
    """Four bytes of UTF-8 are a token; a picture is a thousand, however long its bytes are."""
    assert estimated_tokens(message) == tokens
