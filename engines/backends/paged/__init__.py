"""Language models from Hugging Face folders, by the paged engine: concurrent requests, streamed token by token.

    backend: "paged"
    parameters { key: "MODEL"  value { string_value: "/models/Qwen3-4B" } }

Without MODEL the folder is the version's directory. The tensors are those of Triton's vLLM backend and more
(`autocomplete`), so that its clients and the gateway can use the model; the host serves OpenAI's API.
"""

from __future__ import annotations

from engines.backends.interfaces import Backend
from engines.backends.paged.autocomplete import complete

__all__ = ["complete", "create"]


def create() -> Backend:
    """An instance: an engine with its own weights and cache."""
    from engines.backends.paged.backend import PagedBackend

    return PagedBackend()
