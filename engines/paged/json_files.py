"""The JSON files beside a model's weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from engines.core.errors import invalid


def read_object(path: Path) -> dict[str, Any]:
    """A JSON object of a file; nothing where there is no file.

    Raises: EngineError that names the file.
    """
    if not path.is_file():
        return {}
    try:
        found = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise invalid(f"{path} is no JSON: {error}") from error
    if not isinstance(found, dict):
        raise invalid(f"{path} must be a JSON object")
    return found
