"""Chat templates that rules name: Jinja files, or a tokenizer's JSON that has one in it."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path

from gateway.protocol.llm.templates import read_template as compile_template
from gateway.yaml.nodes import Node
from gateway.yaml.readers import Reading, scalar

_TOKENIZER = "tokenizer_config.json"


def read_template(node: Node, reading: Reading) -> str | None:
    """The text of a template that is named by its path, relative to the rule file's folder; it must be there."""
    written = scalar(str)(node, reading)
    if written is None:
        return None
    path = (Path(node.location.file).parent / written).absolute()
    try:
        text = path.read_text("utf-8")
    except (OSError, ValueError) as error:  # ValueError: not UTF-8, or a NUL in the path
        why = error.strerror if isinstance(error, OSError) else "it is no text in UTF-8"
        reading.error(node.location, f"chat template {written!r} cannot be read: {why} ({path})")
        return None
    if path.suffix == ".json" and not _has_template(text):
        reading.error(
            node.location, f"{written!r} has no 'chat_template': name a tokenizer_config.json, or a Jinja file"
        )
        return None
    try:
        compile_template(text)
    except ValueError as error:
        reading.error(node.location, f"chat template {written!r} cannot be used: {error}")
        return None
    beside = path.with_name(_TOKENIZER)
    if path.suffix != ".json" and beside.is_file():  # with a Jinja file's special tokens
        with suppress(OSError, ValueError, RecursionError):
            config = json.loads(beside.read_text("utf-8"))
            if isinstance(config, dict):
                return json.dumps(config | {"chat_template": text})
    return text


def _has_template(text: str) -> bool:
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        return False
    return isinstance(document, dict) and bool(document.get("chat_template"))
