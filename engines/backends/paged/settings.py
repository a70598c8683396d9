"""Reads a model's folder and engine options from config.pbtxt and --backend-config: texts by name.

    parameters { key: "MODEL"       value { string_value: "../folder" } }
    parameters { key: "MEMORY_GB"   value { string_value: "12" } }
    parameters { key: "ADAPTERS"    value { string_value: "sql=/adapters/sql, chat=/adapters/chat" } }
    parameters { key: "SPECULATION" value { string_value: "ngram, num_tokens=5" } }

Names are those of EngineOptions, in upper or lower case. Paths are relative to the model's directory.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from math import isfinite
from pathlib import Path
from typing import Any

import orjson

from engines.backends.interfaces import InstanceSpec
from engines.core.errors import invalid
from engines.paged.base.options import EngineOptions, Speculation
from engines.state.factory import read_seconds, resolve
from gateway.redis.address import read_address

_log = logging.getLogger(__name__)

MODEL = "model"
# The packages of pip install "pointsman[llm]".
LIBRARIES = ("torch", "tokenizers", "safetensors", "llguidance", "psutil")
_MODEL_DIRECTORY = "$$TRITON_MODEL_DIRECTORY"
# Parameters of the host.
_OTHERS = {"stream_input", "placement", "execution_timeout_seconds", "max_memory_mb", "check_outputs", "metal"}
_OTHERS |= {"execution_env_path", "neural_engine"}
_TRUE, _FALSE = ("true", "1", "on", "yes"), ("false", "0", "off", "no")


def read_settings(spec: InstanceSpec) -> tuple[Path, EngineOptions]:
    """The folder with config.json and weights, and the options.

    Raises: EngineError that names the parameter, and its values.
    """
    defaults = {name.replace("-", "_").lower(): value for name, value in spec.host_options.items()}
    parameters = {name.lower(): parameter.string_value for name, parameter in spec.config.parameters.items()}
    option_names = {each.name for each in fields(EngineOptions)} | {MODEL}
    if strange := sorted(parameters.keys() - option_names - _OTHERS):
        names = ", ".join(name.upper() for name in sorted(option_names))
        _log.warning("%s: parameter %s means nothing to it; those that do are %s", spec.name, strange[0].upper(), names)
    texts = {name: text for name, text in (defaults | parameters).items() if name in option_names and text.strip()}
    folder = _path(texts.pop(MODEL, str(spec.version_directory)), spec.directory)
    options = read_options(texts, spec.directory)
    if options.device == "auto" and spec.kind == "KIND_CPU":
        options = replace(options, device="cpu")
    return folder, options


def read_options(texts: Mapping[str, str], base: Path) -> EngineOptions:
    """Options by their names; paths are relative to `base`.

    Raises: EngineError.
    """
    values: dict[str, Any] = {}
    for name, text in texts.items():
        try:
            values[name] = _READERS[name](text.strip(), base)
        except ValueError as error:
            raise invalid(f"the parameter {name.upper()} is '{text}', and has to be {error}") from None
    return EngineOptions(**values)


def read_adapters(text: str, base: Path) -> dict[str, Path]:
    """`NAME=DIR, NAME=DIR`, or a JSON object of the same.

    Raises: ValueError that says what it has to be.
    """
    if text.startswith("{"):
        try:
            folders = orjson.loads(text)
        except orjson.JSONDecodeError:
            folders = {"": None}
    else:
        pairs = [pair.partition("=") for pair in text.split(",") if pair.strip()]
        folders = {name.strip(): folder.strip() for name, _, folder in pairs}
    if not all(name and isinstance(folder, str) and folder for name, folder in folders.items()):
        raise ValueError("NAME=DIR with commas between them, or a JSON object of names and folders")
    return {name: _path(folder, base) for name, folder in folders.items()}


def read_speculation(text: str, base: Path) -> Speculation | None:
    """`ngram` or `draft=DIR`, then `num_tokens=4`, `ngram_max=4`, `ngram_min=2`, separated by commas; `off` is none.

    Raises: ValueError that says what it has to be.
    """
    method, *more = [part.strip() for part in text.split(",")]
    if method.lower() in ("off", "none", "false"):
        return None
    method, _, folder = method.partition("=")
    numbers: dict[str, Any] = {}
    for part in more:
        name, _, number = part.partition("=")
        if name not in ("num_tokens", "ngram_max", "ngram_min") or not number.isdecimal() or int(number) < 1:
            raise ValueError(_SPECULATION)
        numbers[name] = int(number)
    if method == "ngram" and not folder:
        return Speculation("ngram", **numbers)
    if method == "draft" and folder:
        return Speculation("draft", draft=_path(folder, base), **numbers)
    raise ValueError(_SPECULATION)


_SPECULATION = (
    "off, ngram, or draft=DIR (a small model of the same vocabulary); behind it may stand num_tokens=N, ngram_max=N, "
    "ngram_min=N, with commas between them"
)


def _path(text: str, base: Path) -> Path:
    return (base / Path(text.replace(_MODEL_DIRECTORY, str(base))).expanduser()).resolve()


def _flag(text: str, _base: Path) -> bool:
    if text.lower() in _TRUE:
        return True
    if text.lower() in _FALSE:
        return False
    raise ValueError("true or false")


def _gigabytes(text: str, _base: Path) -> float:
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not (isfinite(number) and number > 0):
        raise ValueError("a positive number of gigabytes")
    return number


def _count(text: str, _base: Path) -> int:
    if not text.isdecimal() or not int(text):
        raise ValueError("a whole number from 1 on")
    return int(text)


_Reader = Callable[[str, Path], Any]


def _one_of(*choices: str, **meanings: str | None) -> _Reader:
    """One of these words; those with a meaning are replaced by it."""
    values = dict(zip(choices, choices, strict=True)) | meanings

    def read(text: str, _base: Path) -> str | None:
        if text.lower() not in values:
            raise ValueError(f"one of {', '.join(values)}")
        return values[text.lower()]

    return read


def _store(text: str, _base: Path) -> str:
    """A Redis' URL, or `env:NAME`, an environment variable that has it: parameters are shown to clients.

    Raises: EngineError, which repeats no password.
    """
    url = resolve(text)
    try:
        read_address(url)
    except ValueError as error:
        where = f" ({text})" if url is not text else ""
        raise invalid(f"the parameter KV_STORE{where} has to be the URL of a Redis: {error}") from None
    return url


def _zmq_address(text: str, _base: Path) -> str:
    scheme, _, rest = text.partition("://")
    if scheme not in ("tcp", "ipc") or not rest or (scheme == "tcp" and not rest.rpartition(":")[2].isdecimal()):
        raise ValueError("tcp://ADDRESS:PORT, or ipc://PATH")
    return text


_READERS: dict[str, _Reader] = {
    "device": _one_of("auto", "mps", "cuda", "cpu"),
    "ops": _one_of("auto", "reference", "native", "metal"),
    "dtype": _one_of("auto", "float32", "float16", "bfloat16"),
    "memory_gb": _gigabytes,
    "quantize": _one_of(none=None, int8="int8", int4="int4"),
    "speculation": read_speculation,
    "adapters": read_adapters,
    "kv_store": _store,
    "kv_codec": _one_of("raw", "int8"),
    "kv_fetch": _one_of("auto", "always"),
    "kv_secret_file": _path,
    **dict.fromkeys(("kv_events", "kv_events_replay"), _zmq_address),
    **dict.fromkeys(("kv_ttl", "kv_deadline"), lambda text, _: read_seconds(text)),
    **dict.fromkeys(("prefix_cache", "deterministic", "run_ahead", "check_logits"), _flag),
    **dict.fromkeys(
        (
            *("num_blocks", "block_size", "max_sequences", "max_batch_tokens", "max_context", "max_waiting"),
            *("quantize_group", "threads"),
        ),
        _count,
    ),
}
