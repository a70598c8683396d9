"""The engines, and how each is started: alone in a process of its own, or with its server.

All have the same number of threads, and defaults for what this file does not set. Its settings are those with which a
peer is fastest on this model and these cases, found by trial (README.md, "Language-model engines").
"""

import importlib.metadata
import importlib.util
import json
import os
import shutil
import socket
import sys
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import psutil

from bench import llm_client
from bench.llm_gguf import gguf_file
from bench.llm_model import Shape, Words, model_folder
from bench.llm_work import Answer, Request
from bench.llm_worker import CACHE_TOKENS, MEMORY_GB
from bench.processes import SCRIPTS, BenchError, free_port, listener
from bench.programs import Running, Site, first_line, start_on_port, wait_until

START_SECONDS = 180.0
ASK_SECONDS = 600.0
PORT = "llm"
SLOTS = 16  # requests at a time in the largest case
NAME = "bench"

# The place of a llama-server of one's own, or else the PATH: `llm.py --install` builds one for this processor.
LLAMA_SERVER = SCRIPTS.parent / ".bench-llamacpp" / "bin" / "llama-server"


@dataclass(frozen=True, slots=True)
class TransformersSettings:
    """The settings of transformers' continuous batching."""

    attention: str
    page_size: int
    max_batch_tokens: int
    environment: Mapping[str, str]

    def __str__(self) -> str:
        names = " ".join(f"{name}={value}" for name, value in self.environment.items())
        return f"{self.attention}, pages of {self.page_size}, {self.max_batch_tokens} tokens a batch, {names}"


# SDPA's only alternative is eager, which takes twice as long. Without the variable keys and values are copied for every
# query head. Pages of 32 keep nearly all of a prefix; the default of 256 would keep three quarters of it.
TRANSFORMERS = TransformersSettings("sdpa", 32, 512, {"TRANSFORMERS_SDPA_FORCE_GQA": "1"})

# llama.cpp divides its context among its slots: the long prompt has to fit into one.
LLAMA_CONTEXT_TOKENS = 4352
LLAMA_WEIGHTS = "BF16"
LLAMA_FLASH = "on"


@dataclass(frozen=True, slots=True)
class Model:
    """The served model: a shape in a datatype."""

    shape: Shape
    dtype: str
    threads: int
    home: Path | None = None

    @property
    def folder(self) -> Path:
        return model_folder(self.shape, self.dtype, self.home)

    @property
    def words(self) -> Words:
        return Words(self.shape.vocabulary)


class Ask(Protocol):
    """Send requests to one engine, and return its answers."""

    def __call__(self, requests: Sequence[Request]) -> list[Answer]: ...


@dataclass(frozen=True, slots=True)
class Up:
    """A started engine. `settings` describe its setup for the reader."""

    running: Running
    ask: Ask
    settings: str


@dataclass(frozen=True, slots=True)
class LlmEngine:
    """An engine of the benchmark. `find` returns its version, or None if it cannot run here (`how_to_get`)."""

    name: str
    is_served: bool
    find: Callable[[], str | None]
    start: Callable[[Site, Model], Up]
    how_to_get: str


def variables(model: Model) -> dict[str, str]:
    """The environment of all engines: the number of threads, and no network access."""
    threads = {name: str(model.threads) for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS")}
    python = {"PYTHONPATH": os.pathsep.join([str(SCRIPTS), str(SCRIPTS.parent)])}
    return threads | python | {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}


# Engines without a server


def _start_worker(name: str, kind: str, site: Site, model: Model, environment: Mapping[str, str]) -> Up:
    port = free_port()
    argv = [sys.executable, "-m", "bench.llm_worker", kind, "--model", model.folder, "--dtype", model.dtype]
    argv += ["--threads", str(model.threads), "--port", str(port)]
    running = start_on_port(site, name, argv, port, {PORT: port}, variables(model) | environment, START_SECONDS)
    about = _tell_worker(port, "about")["about"]

    def ask(requests: Sequence[Request]) -> list[Answer]:
        asked = [
            {"prompt": each.prompt, "max_tokens": each.max_tokens, "after_tokens": each.after_tokens}
            for each in requests
        ]
        return [Answer(**answer) for answer in _tell_worker(port, asked)["answers"]]

    return Up(running, ask, about)


def _tell_worker(port: int, what: Any) -> dict[str, Any]:
    """Raises: BenchError with the engine's message."""
    try:
        connection = socket.create_connection(("127.0.0.1", port), timeout=ASK_SECONDS)
        with connection, connection.makefile("rw") as lines:
            lines.write(json.dumps(what) + "\n")
            lines.flush()
            found: dict[str, Any] = json.loads(lines.readline())
    except (OSError, ValueError) as error:
        raise BenchError(f"the engine's process gave no answer: {error!r}") from error
    if "error" in found:
        raise BenchError(found["error"])
    return found


def _start_our_engine(site: Site, model: Model) -> Up:
    return _start_worker("ours", "ours", site, model, {})


def _start_transformers(site: Site, model: Model) -> Up:
    return _start_worker("transformers", "transformers", site, model, TRANSFORMERS.environment)


# Servers


def _asking(model: Model, port: int, body: Mapping[str, Any]) -> Ask:
    words = model.words

    def ask(requests: Sequence[Request]) -> list[Answer]:
        return llm_client.ask(port, body, requests, [words.text(request.prompt) for request in requests])

    return ask


def _start_our_server(site: Site, model: Model) -> Up:
    ready = site.folder / "llm-ready.json"
    ready.unlink(missing_ok=True)
    argv = [sys.executable, "-m", "engines", "llm", "--model", model.folder, "--name", NAME, "--ready-file", ready]
    argv += ["--http-port", "0", "--grpc-port", "0", "--metrics-port", "0", "--threads", str(model.threads)]
    argv += ["--device", "cpu", "--dtype", model.dtype, "--memory-gb", str(MEMORY_GB)]
    process = site.children.spawn("ours-served", argv, site.cores, variables(model))
    wait_until(ready.exists, site, process, "ours-served", START_SECONDS)
    port = json.loads(ready.read_text())["http"]
    body = {"model": NAME, "temperature": 0, "ignore_eos": True, "stream_options": {"include_usage": True}}
    running = Running("ours-served", {PORT: port}, process, listener(process, port))
    return Up(running, _asking(model, port, body), "pointsman llm, defaults")


def _start_transformers_serve(site: Site, model: Model) -> Up:
    port, folder = free_port(), model.folder
    program = Path(sys.executable).parent / "transformers"
    argv = [program, "serve", folder, "--continuous-batching", "--attn-implementation", TRANSFORMERS.attention]
    argv += ["--cb-block-size", TRANSFORMERS.page_size, "--cb-num-blocks", CACHE_TOKENS // TRANSFORMERS.page_size]
    argv += ["--cb-max-batch-tokens", TRANSFORMERS.max_batch_tokens, "--device", "cpu", "--dtype", model.dtype]
    argv += ["--host", "127.0.0.1", "--port", port, "--log-level", "error"]
    environment = variables(model) | TRANSFORMERS.environment
    running = start_on_port(
        site, "transformers-serve", list(map(str, argv)), port, {PORT: port}, environment, START_SECONDS
    )
    return Up(running, _asking(model, port, {"model": str(folder)}), f"continuous batching, {TRANSFORMERS}")


def _start_llama_cpp(site: Site, model: Model) -> Up:
    kind = "F32" if model.dtype == "float32" else LLAMA_WEIGHTS
    path, port = gguf_file(model.shape, model.dtype, kind, model.home), free_port()
    context = SLOTS * LLAMA_CONTEXT_TOKENS
    cache = "f32" if model.dtype == "float32" else "f16"
    if binary := llama_server():
        argv = [binary, "-m", path, "-a", NAME, "--host", "127.0.0.1", "--port", port, "-np", SLOTS, "-c", context]
        argv += ["-t", model.threads, "-tb", model.threads, "-ctk", cache, "-ctv", cache, "-fa", LLAMA_FLASH]
        argv += ["--cache-ram", 0, "--log-disable"]
        argv = list(map(str, argv))
    else:
        argv = [sys.executable, "-m", "bench.llm_xllamacpp", path, str(port), str(SLOTS), str(context)]
        argv += [str(model.threads), cache]
    running = start_on_port(site, "llama.cpp", argv, port, {PORT: port}, variables(model), START_SECONDS)
    wait_until(lambda: _is_healthy(port), site, _process(running), "llama.cpp", START_SECONDS)
    body = {"model": NAME, "temperature": 0, "ignore_eos": True, "stream_options": {"include_usage": True}}
    settings = f"{SLOTS} slots, GGUF {kind}, {cache} cache, flash attention {LLAMA_FLASH}"
    return Up(running, _asking(model, port, body), settings)


def llama_server() -> Path | None:
    """A llama-server that was built here, or that is on the PATH."""
    if LLAMA_SERVER.exists():
        return LLAMA_SERVER
    found = shutil.which("llama-server")
    return Path(found) if found else None


def _process(running: Running) -> psutil.Process:
    assert running.process is not None
    return running.process


def _is_healthy(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5) as reply:
            return bool(reply.status == 200)
    except OSError:  # it is loading
        return False


# Versions


def _our_version() -> str | None:
    if importlib.util.find_spec("torch") is None:
        return None
    revision = first_line("git", "-C", SCRIPTS, "describe", "--always", "--dirty") or "no revision"
    return f"pointsman {importlib.metadata.version('pointsman')} ({revision}), {_version('torch')}"


def _transformers_version() -> str | None:
    has = importlib.util.find_spec("transformers") and importlib.util.find_spec("torch")
    return f"{_version('transformers')}, {_version('torch')}" if has else None


def _serve_version() -> str | None:
    return _transformers_version() if importlib.util.find_spec("uvicorn") else None


def _llama_version() -> str | None:
    if importlib.util.find_spec("gguf") is None:
        return None
    if binary := llama_server():
        return f"llama-server, built for this processor: {first_line(binary, '--version') or 'no version'}"
    return f"{_version('xllamacpp')}, built for AVX2" if importlib.util.find_spec("xllamacpp") else None


def _version(package: str) -> str:
    return f"{package} {importlib.metadata.version(package)}"


ENGINES = {
    engine.name: engine
    for engine in (
        LlmEngine("transformers", False, _transformers_version, _start_transformers, "pip install transformers torch"),
        LlmEngine("ours", False, _our_version, _start_our_engine, "pip install -e '.[torch]'"),
        LlmEngine(
            "transformers-serve",
            True,
            _serve_version,
            _start_transformers_serve,
            "pip install 'transformers[serving]'",
        ),
        LlmEngine("llama.cpp", True, _llama_version, _start_llama_cpp, "scripts/bench/llm.py --install"),
        LlmEngine("ours-served", True, _our_version, _start_our_server, "pip install -e '.[torch]'"),
    )
}
