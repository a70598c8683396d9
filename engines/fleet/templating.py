"""`{http_port}` and its like in an agent's command, environment and ready URL. Other braces stay as they are."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

_PLACEHOLDER = re.compile(r"\{([a-z][a-z0-9_]*)\}")
_KNOWN = frozenset({"address", "name", "replica", "directory"})
_PORT = "_port"


def port_names(texts: Iterable[str]) -> tuple[str, ...]:
    """The ports that the texts ask for, in the order of their first use: `{http_port}` asks for `http`."""
    words = (word for text in texts for word in _PLACEHOLDER.findall(text))
    return tuple(dict.fromkeys(word.removesuffix(_PORT) for word in words if word.endswith(_PORT)))


def unknown(texts: Iterable[str]) -> list[str]:
    """Placeholders that mean nothing."""
    words = (word for text in texts for word in _PLACEHOLDER.findall(text))
    return [word for word in dict.fromkeys(words) if word not in _KNOWN and not word.endswith(_PORT)]


def fill(text: str, facts: Mapping[str, str]) -> str:
    """The text with each placeholder replaced. Raises: KeyError for one that `facts` lack."""
    return _PLACEHOLDER.sub(lambda found: facts[found[1]], text)
