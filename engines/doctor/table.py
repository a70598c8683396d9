"""All checks, in the order in which they run."""

from __future__ import annotations

from collections.abc import Iterable

from engines.doctor.endpoint import SECONDS
from engines.doctor.finding import Check

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
    Check("redis", "engines.doctor.tools:redis", 30.0),
    Check("compiler", "engines.doctor.tools:compiler", 60.0, needs=_TORCH, extra="llm"),
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
        Check(f"engine {name}", "engines.doctor.endpoint:connect", SECONDS * 4, arguments={"url": url})
        for name, url in endpoints
    ]
