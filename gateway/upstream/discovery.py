"""What an openai engine tells of the models that it serves."""

from __future__ import annotations

from typing import Any

import orjson

# Where the list stands and what has a model's name in it: OpenAI's form first, then Ollama's, as /api/tags has it.
_FORMS = (("data", ("id",)), ("models", ("name", "model", "id")))


def read_models(body: bytes) -> frozenset[str] | None:
    """The names in the answer to GET /v1/models; None where it is no such list."""
    try:
        document = orjson.loads(body)
    except orjson.JSONDecodeError:
        return None
    if isinstance(document, list):  # as Together's
        document = {"data": document}
    if not isinstance(document, dict):
        return None
    for key, names in _FORMS:
        listed = document.get(key, "")
        if listed is None:  # Ollama has no models yet
            return frozenset()
        if isinstance(listed, list):
            return frozenset(name for name in (_name(model, names) for model in listed) if name)
    return None


def _name(model: Any, keys: tuple[str, ...]) -> str | None:
    if not isinstance(model, dict):
        return None
    return next((model[key] for key in keys if isinstance(model.get(key), str)), None)
