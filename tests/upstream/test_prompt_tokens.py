"""The gateway's tokens of a prompt are those of the paged engine's own tokenizer, for each API that is followed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from engines.paged.text.tokenizer import Tokenizer
from gateway.upstream.prompt_tokens import _STRING, PromptTokenizer
from tests.engines.paged.front.llm_process import tiny_folder

TEXT = 'A "quoted" line,\nan accent \u00e9 and enough words to fill some blocks of bytes. ' * 3
TURNS = [{"role": "user", "content": TEXT}]
RULES = {"role": "system", "content": "Be brief."}
# A request's body, and the conversation or text or tokens that the engine makes of it
CASES: list[tuple[dict[str, Any], Any]] = [
    ({"messages": [RULES, *TURNS]}, [RULES, *TURNS]),
    ({"system": "Be brief.", "messages": TURNS, "max_tokens": 1}, [RULES, *TURNS]),
    ({"prompt": TEXT}, TEXT),
    ({"prompt": list(range(5, 95))}, list(range(5, 95))),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_folder(tmp_path_factory.mktemp("model"))


@pytest.mark.parametrize(("fields", "prompt"), CASES, ids=["chat", "messages", "text", "tokens"])
def test_tokens_are_the_engines(folder: Path, fields: dict[str, Any], prompt: Any) -> None:
    """Chats, Anthropic's messages, texts and token ids; later byte blocks need more tokens, and never too many."""
    engine = Tokenizer.load(folder)
    if isinstance(prompt, str):
        expected = engine.encode(prompt)
    elif isinstance(prompt[0], int):
        expected = prompt
    else:
        expected = engine.encode(engine.render_chat(prompt), add_special_tokens=False)
    body = json.dumps({"model": "tiny", **fields}).encode()
    found = PromptTokenizer(folder, 32, 1 << 16).tokenize(body, 0)
    assert found is not None and list(found.token_ids) == expected
    counts = [tokens for _, tokens in found.blocks]
    assert len(counts) == len(body) // 32
    assert counts == sorted(counts) and 0.8 * len(expected) <= counts[-1] <= len(expected)


@pytest.mark.parametrize("text", [rb'"\"\"\"', rb'"a\"b\\', rb'"\\\"', b'"abc'])
def test_a_string_without_an_end_reaches_to_the_end(text: bytes) -> None:
    """Each quote begins a match: else those of a prompt full of escaped quotes took time by the square of its length,
    47 s for 64 KiB, in which the control process did nothing."""
    found = _STRING.match(text)
    assert found is not None and found[0] == text
    assert _STRING.findall(rb'{"a\"c": "b", ' + text) == [rb'"a\"c"', b'"b"', text]
