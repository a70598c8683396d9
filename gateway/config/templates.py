"""Chat templates that rules name: Jinja files, or a tokenizer's JSON that has one in it."""

from __future__ import annotations

import json
from pathlib import Path

from gateway.yaml.nodes import Node
from gateway.yaml.readers import Reading, scalar


def read_template(node: Node, reading: Reading) -> str | None:
    """Read the path of a template, relative to the rule file's folder; the file must be there and readable."""
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
    return str(path)


def _has_template(text: str) -> bool:
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        return False
    return isinstance(document, dict) and bool(document.get("chat_template"))
