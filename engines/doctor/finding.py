"""Checks, their findings, and the table of all checks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from enum import Enum
from typing import Any


class FindingStatus(Enum):
    """The severity of a finding. Only FAIL makes the command's exit status 1."""

    OK = "ok"
    WARN = "warn"  # it works, slower or not for everything
    FAIL = "fail"  # something will not work
    SKIPPED = "skipped"  # it does not apply here, or a package is missing


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of a check: a sentence with figures, and the cure. `figures` are for the report."""

    status: FindingStatus
    found: str
    cure: str = ""
    figures: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "status": self.status.value}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Finding:
        """Raises: KeyError, ValueError where it is not one of `to_json`."""
        return cls(FindingStatus(values["status"]), values["found"], values["cure"], values["figures"])


def ok(found: str, **figures: Any) -> Finding:
    return Finding(FindingStatus.OK, found, figures=figures)


def warn(found: str, cure: str, **figures: Any) -> Finding:
    return Finding(FindingStatus.WARN, found, cure, figures)


def fail(found: str, cure: str, **figures: Any) -> Finding:
    return Finding(FindingStatus.FAIL, found, cure, figures)


def skipped(why: str, cure: str = "") -> Finding:
    return Finding(FindingStatus.SKIPPED, why, cure)


@dataclass(frozen=True, slots=True)
class Check:
    """One row of the table.

    function   "module:name"; it is called with `arguments`
    platforms  values of sys.platform that it applies to; empty: all
    needs      modules that must be installed
    extra      the extra of pyproject.toml that installs them
    """

    name: str
    function: str
    seconds: float = 20.0
    platforms: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    extra: str = ""
    arguments: Mapping[str, Any] = field(default_factory=dict)


# For a connection to an endpoint; a host may have several addresses.
CONNECT_SECONDS = 5.0

_MAC = ("darwin",)
_TORCH = ("torch", "numpy")
_PSUTIL = (*_TORCH, "psutil")
_ENGINE = (*_PSUTIL, "tokenizers", "safetensors", "llguidance")

CHECKS = (
    Check("python", "engines.doctor.system:python"),
    Check("packages", "engines.doctor.system:packages"),
    Check("descriptors", "engines.doctor.system:descriptors"),
    Check("shared memory", "engines.doctor.system:shared_memory"),
    Check("power", "engines.doctor.system:power", platforms=_MAC),
    Check("redis", "engines.doctor.system:redis", 30.0),
    Check("compiler", "engines.doctor.system:compiler", 60.0, needs=_TORCH, extra="llm"),
    Check("torch", "engines.doctor.compute:torch_version", 60.0, needs=_TORCH, extra="llm"),
    Check("gpu", "engines.doctor.compute:gpu", 60.0, needs=_PSUTIL, extra="llm"),
    Check("kernels", "engines.doctor.compute:kernels", 590.0, needs=_TORCH, extra="llm"),
    Check("replacements", "engines.doctor.compute:replacements", 120.0, needs=_TORCH, extra="llm"),
    Check("native attention", "engines.doctor.compute:native", 120.0, needs=_TORCH, extra="llm"),
    Check("dispatch", "engines.doctor.compute:dispatch", 120.0, needs=_TORCH, extra="llm"),
    Check("bandwidth", "engines.doctor.compute:bandwidth", 60.0, needs=_PSUTIL, extra="llm"),
    Check("tokens", "engines.doctor.compute:tokens", 180.0, needs=_ENGINE, extra="llm"),
    Check(
        "coreml", "engines.doctor.compute:coreml", 120.0, platforms=_MAC, needs=("coremltools", "numpy"), extra="coreml"
    ),
    Check("memory", "engines.doctor.budget:budget", 60.0, needs=_PSUTIL, extra="llm"),
)


def endpoint_checks(endpoints: Iterable[tuple[str, str]]) -> list[Check]:
    """One for each (engine, URL) of the rules."""
    return [
        Check(f"engine {name}", "engines.doctor.system:connect", CONNECT_SECONDS * 4, arguments={"url": url})
        for name, url in endpoints
    ]
