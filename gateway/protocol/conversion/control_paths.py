"""The paths of Triton's REST protocol, filled in from a message's fields and read back into them.

Source: Triton server `src/http_server.cc`: a version is digits only, and what may be missing leaves no slash behind.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from urllib.parse import unquote

from gateway.protocol.operations import path_segment

_INNERMOST = re.compile(r"\[([^\[\]]*)\]")
_FIELD = re.compile(r"\{(\w+)\}")


class Path:
    """`/v2/models/{name}[/versions/{version}]/ready`: a path with fields; what stands in brackets may be missing."""

    __slots__ = ("_pattern", "_template")

    def __init__(self, template: str) -> None:
        self._template = template
        pattern = template.replace("[", "(?:").replace("]", ")?").replace("{version}", "(?P<version>[0-9]+)")
        self._pattern = re.compile(_FIELD.sub(r"(?P<\1>[^/]+)", pattern))

    def __repr__(self) -> str:
        return f"<Path {self._template}>"

    def fill(self, field: Callable[[str], str]) -> str | None:
        """The path with percent-encoded fields; None where a field is empty that it cannot do without."""

        def is_whole(part: str) -> bool:
            return all(field(name) for name in _FIELD.findall(part))

        path, num_left = self._template, 1
        while num_left:
            path, num_left = _INNERMOST.subn(lambda found: found[1] if is_whole(found[1]) else "", path)
        return _FIELD.sub(lambda found: path_segment(field(found[1])), path) if is_whole(path) else None

    def read(self, path: str) -> dict[str, str] | None:
        """The fields that a path (without its query) tells, decoded; None where it is another path."""
        found = self._pattern.fullmatch(path)
        return None if found is None else {name: unquote(text) for name, text in found.groupdict("").items()}
