"""The jax backend: a `model.py` with `apply(params, inputs) -> outputs`, and its parameters beside it.

`inputs` and `outputs` are dictionaries of arrays by the names of the configuration; `params` are the arrays of
`model.safetensors` or `model.npz`, as dictionaries of dictionaries where names have slashes ("block/norm/scale").
`apply` is compiled once for each shape: batches are padded to a power of two, so that there are few of them. What a
sequence carries from step to step are inputs and outputs too, kept between them by the configuration's implicit state.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from engines.backends.config_completion import is_complete
from engines.backends.interfaces import Backend
from engines.core.errors import invalid

EXTRA = "jax"
INSTANCES_SHARE_A_PROCESS = True


def create() -> Backend:
    from engines.backends.jax.backend import JaxBackend

    return JaxBackend()


def complete(config: Any, directory: Path, options: Mapping[str, str] | None = None) -> None:
    """Raises: EngineError where inputs or outputs are open: a function does not tell them."""
    if not is_complete(config):
        raise invalid(f"model '{config.name}' has to say its inputs and outputs in config.pbtxt: a jax function cannot")
