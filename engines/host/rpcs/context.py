"""What the control RPCs work on."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Protocol, cast

from engines.core.errors import invalid
from engines.host.logs import LogSettings
from engines.host.shared_memory import SharedMemoryRegions
from engines.host.statistics import Statistics
from engines.host.tracing import Tracer
from engines.repository import Repository
from gateway.protocol.protobuf import Message, message

_MAX_VERSION = (1 << 63) - 1
_NUMBER = re.compile(r"\s*[+-]?[0-9]{1,30}")


class Served(Protocol):
    """A version of a model that serves."""

    @property
    def name(self) -> str: ...

    @property
    def version(self) -> str: ...

    @property
    def config(self) -> Any: ...

    @property
    def statistics(self) -> Statistics: ...


@dataclass(slots=True)
class Context:
    """The host's state. `is_live`: it runs; `is_ready`: it takes requests and its models are there."""

    models: Repository
    regions: SharedMemoryRegions
    tracer: Tracer
    logs: LogSettings
    name: str
    version: str
    is_strict: bool = True
    is_serving: bool = True

    @property
    def is_ready(self) -> bool:
        return self.is_serving and (not self.is_strict or self.models.is_ready)

    def served(self) -> Iterable[Served]:
        """All versions that are ready, by name and version."""
        return cast("list[Served]", self.models.ready_models())


def new(name: str) -> Message:
    """An empty message of Triton's service."""
    return message(f"inference.{name}")()


def check_version(text: str) -> str:
    """A version as the repository looks it up: "" where any will do. Triton reads it by C's stol, which stops at what
    is no digit.

    Raises: EngineError.
    """
    if not text:
        return ""
    found = _NUMBER.match(text)
    number = int(found[0]) if found else None
    if number is None or not -_MAX_VERSION <= number <= _MAX_VERSION:
        raise invalid(
            f"failed to get model version from specified version string '{text[:80]}' (details: stol), version should "
            "be an integral value > 0"
        )
    if number < 0:
        raise invalid(f"invalid model version specified '{text}' , version should be an integral value > 0")
    return str(number)


def state_name(state: Any) -> str:
    """The name of a version's state in an index: an enum's, or a text as it is; "" where it has none yet."""
    name = str(getattr(state, "value", state) or "")
    return "" if name == "UNKNOWN" else name
