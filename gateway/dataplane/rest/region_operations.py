"""Shared memory by REST: regions under the names that their clients have at engines."""

from __future__ import annotations

import re
from typing import Any, NamedTuple
from urllib.parse import unquote

import orjson

from gateway.protocol.region_names import RegionNames

_PATH = re.compile(r"(/v2/(?:system|cuda)sharedmemory)(?:/region/([^/?]+))?/(\w+)(.*)")


class RegionPath(NamedTuple):
    """The parts of a target that names shared memory; `region` as it stands there, "" for all."""

    memory: str
    region: str
    action: str
    query: str

    @classmethod
    def of(cls, target: bytes) -> RegionPath:
        found = _PATH.fullmatch(target.decode("latin-1"))
        assert found is not None  # the path was read already
        memory, region, action, query = found.groups("")
        return cls(memory, region, action, query)

    def name(self, *, by_grpc: bool) -> str:
        """The region's name as inferences name it: Triton's REST does not resolve escapes."""
        return unquote(self.region) if by_grpc else self.region

    def target(self, region: str, action: str = "") -> bytes:
        """The target for another region, or another action."""
        name = f"/region/{region}" if region else ""
        return f"{self.memory}{name}/{action or self.action}{self.query}".encode("latin-1")


class OwnRegions:
    """What one client may see of the regions at engines."""

    def __init__(self, names: RegionNames, owner: str) -> None:
        self._names = names
        self._owner = owner

    def code(self, name: str) -> str:
        """What stands behind its name of a region."""
        return self._names.code(self._owner, name)

    def of(self, body: bytes) -> list[Any]:
        """Its regions in an engine's status, by its own names."""
        return [
            {**each, "name": name}
            for each in _regions(body)
            if (name := self._names.of_client(self._owner, each["name"])) is not None
        ]

    def names_at_engine(self, body: bytes) -> list[str]:
        """Its regions in an engine's status, by the engine's names."""
        return [each["name"] + self.code(each["name"]) for each in self.of(body)]

    def is_taken(self, key: str, body: bytes) -> bool:
        """Whether another's region in an engine's status is of this object."""
        return any(
            str(each.get("key", "")).lstrip("/") == key.lstrip("/")
            and self._names.of_client(self._owner, each["name"]) is None
            for each in _regions(body)
        )


def _regions(body: bytes) -> list[dict[str, Any]]:
    try:
        regions = orjson.loads(body)
    except orjson.JSONDecodeError:
        return []
    if not isinstance(regions, list):
        return []
    return [each for each in regions if isinstance(each, dict) and isinstance(each.get("name"), str)]


def object_key(body: bytes) -> str:
    """The object that a registration names; "" where it names none."""
    try:
        fields = orjson.loads(body)
    except orjson.JSONDecodeError:
        return ""
    key = fields.get("key") if isinstance(fields, dict) else None
    return key if isinstance(key, str) else ""


def without_code(body: bytes, code: str) -> bytes:
    """An engine's reply without the code of a region's name."""
    return body.replace(code.encode(), b"") if code else body
