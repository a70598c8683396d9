"""Our engines as Ray Serve applications: `serve run engines.ray_app:host model_repository=DIR`, `...:llm model=DIR`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from engines.ray_app.builders import host, llm

__all__ = ["host", "llm"]


def __getattr__(name: str) -> Any:
    """The builders are loaded when Serve looks them up: the servers, which are of this package too, need no Ray."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from engines.ray_app import builders

    return getattr(builders, name)
