"""`pointsman conversations` prints what clients and engines have written."""

from typing import Any, cast

import pytest

from gateway.cli import conversations
from gateway.cli.admin_client import Gateway, refused

EVIL = "\x1b]52;c;ZXZpbA==\x07\x1b[2Jhi\x9b31m\r\n\tthere"
SHOWN = r"\x1b]52;c;ZXZpbA==\x07\x1b[2Jhi\x9b31m\r"


class Conversations:
    """The admin API of a gateway that keeps one conversation."""

    def get(self, *path: str, query: dict[str, Any]) -> Any:
        if len(path) == 1:
            numbers = {"revision": 1, "tokens": 2, "bytes": 3, "updated": 1.0}
            return {"conversations": [{"session": EVIL, "tenant": EVIL, **numbers}], "cursor": None}
        turn = {"role": "user", "content": EVIL, "engine": EVIL, "tokens": 1, "created": 1.0}
        call = {"function": {"name": EVIL, "arguments": EVIL}}
        return {"system": [{"content": EVIL}], "turns": [turn, {**turn, "content": None, "tool_calls": [call]}]}


def controls(text: str) -> set[str]:
    return {each for each in text if not each.isprintable()} - set("\n\t ")


def test_texts_do_not_control_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    """What clients and engines write cannot clear the operator's terminal or fill its clipboard; lines stay lines."""
    gateway = cast(Gateway, Conversations())
    conversations.list_all(gateway)
    assert not controls(shown := capsys.readouterr().out) and SHOWN in shown
    conversations.show(gateway, "s")
    shown = capsys.readouterr().out
    assert not controls(shown)
    assert shown.count(SHOWN + "\n") == 4 and "there" in shown  # the system's, the user's, and twice the call's


def test_refusals_do_not_control_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    refused(EVIL)
    assert not controls(capsys.readouterr().err)
