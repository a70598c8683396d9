"""Language models from Hugging Face folders, by the paged engine: many requests at a time, told token by token.

    backend: "paged"
    parameters { key: "MODEL"  value { string_value: "/models/Qwen3-4B" } }

Without MODEL the folder is the version's directory. Its tensors are those of Triton's vLLM backend, and more
(`completion`), so that clients of that one, and the gateway, find their way; OpenAI's API is the host's.
"""

from __future__ import annotations

from engines.backends.interfaces import Backend
from engines.backends.paged.autocomplete import complete

__all__ = ["complete", "create"]


def create() -> Backend:
    """An instance: an engine with weights and cache of its own."""
    from engines.backends.paged.backend import PagedBackend

    return PagedBackend()
