"""A folder's chat templates: in the tokenizer's configuration, or in files of their own."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from engines.core.errors import invalid
from gateway.protocol.llm.templates import Template, read_template

_DEFAULT = "default"
_FILE, _OLD_FILE, _MORE = "chat_template.jinja", "chat_template.json", "additional_chat_templates"


def read_chat_template(folder: Path, config: Mapping[str, Any]) -> Template | None:
    """The folder's templates, None where it has none. As in `transformers`: files go before the tokenizer's
    configuration, which `config` is, and `chat_template.json` is asked last.

    Raises: EngineError where one is no template.
    """
    files = [folder / _FILE, *sorted((folder / _MORE).glob("*.jinja"))]
    sources = {_DEFAULT if path.name == _FILE else path.stem: _read(path) for path in files if path.is_file()}
    if sources:
        written: Any = sources
    elif config.get("chat_template"):
        written = config["chat_template"]
    elif (folder / _OLD_FILE).is_file():
        written = _old(folder / _OLD_FILE)
    else:
        return None
    try:
        return read_template(json.dumps({**config, "chat_template": written}))
    except ValueError as error:
        raise invalid(f"the chat template of {folder} cannot be used: {error}") from error


def _old(path: Path) -> Any:
    try:
        found = json.loads(_read(path))
    except ValueError as error:
        raise invalid(f"{path} is no JSON: {error}") from error
    return found.get("chat_template") if isinstance(found, dict) else found


def _read(path: Path) -> str:
    try:
        return path.read_text("utf-8")
    except (OSError, ValueError) as error:
        raise invalid(f"{path} cannot be read: {error}") from error
