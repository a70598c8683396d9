"""Where onnxruntime's CoreML provider keeps what it compiles of a model, so that only the first load compiles.

Source: onnxruntime's CoreML provider, "ModelCacheDirectory" (since 1.21; an earlier one refuses the option). The
provider does not notice that a model has changed, and what one onnxruntime wrote another cannot always load: so the
folder's name is a hash of the model, of the provider's options, of onnxruntime's version and of the machine.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from engines.backends.coreml.disk_cache import cache_directory, digest, machine
from engines.backends.onnxruntime.providers import COREML, Provider

_log = logging.getLogger(__name__)

OPTION = "ModelCacheDirectory"
_SINCE = (1, 21)


@contextmanager
def cached(
    providers: list[Provider], path: Path, version: str, here: Callable[[], str] = machine
) -> Iterator[list[Provider]]:
    """The providers, CoreML's with a folder for this model where it has none. Other processes that make a session of
    the same model wait until this one is made, and load what it has compiled.

    `version` is onnxruntime's, `here` names the machine. External weights lie beside the model's file: its whole
    folder counts as the model.
    """
    options = dict(providers).get(COREML)
    if options is None or OPTION in options or _release(version) < _SINCE:
        yield providers
        return
    ingredients = json.dumps([digest(path.parent), path.name, sorted(options.items()), version, here()])
    folder = cache_directory().with_name("onnx-coreml") / hashlib.sha256(ingredients.encode()).hexdigest()[:32]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = folder.with_suffix(".lock").open("w")
    except OSError as error:
        _log.warning("what CoreML compiles is not kept: %s: %s", folder, error.strerror)
        yield providers
        return
    with lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield [(name, {**own, OPTION: str(folder)} if name == COREML else own) for name, own in providers]


def _release(version: str) -> tuple[int, ...]:
    return tuple(int(part) if part.isdecimal() else 0 for part in version.split(".")[:2])
