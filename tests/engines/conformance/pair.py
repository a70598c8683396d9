"""Two servers of the same repositories, a real Triton and the host, that are asked the same."""

import importlib.util
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import tritonclient.http as http_client

from gateway.demo.triton import TritonProcess
from tests.engines.conformance.asking import Server
from tests.support.host import HostProcess

T = TypeVar("T")

TESTS = Path(__file__).parents[2]
SIMPLE_MODELS = TESTS / "models"
ENGINE_MODELS = TESTS / "engines" / "models"
BROKEN_MODELS = Path(__file__).parent / "broken_models"
REPOSITORIES = (SIMPLE_MODELS, ENGINE_MODELS, BROKEN_MODELS)

# What request headers a model sees as parameters, so that a test can tell that they arrived.
FORWARDED = [f"--{front}-header-forward-pattern=x-forward-.*" for front in ("http", "grpc")]
CACHE = ["--cache-config=local,size=4194304"]
EXPLICIT = ["--model-control-mode=explicit", "--rate-limit=execution_count", *FORWARDED, *CACHE]

# A model takes Triton some seconds to load where others load beside it.
LOAD_SECONDS = 60.0


@dataclass
class Pair:
    """The two servers; models are loaded on both when they are first needed, for loading costs the most here."""

    triton: Server
    host: Server
    _loaded: set[str] = field(default_factory=set)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def ask(self, call: Callable[[Server], T]) -> tuple[T, T]:
        """What Triton answers to a call, and what the host does: at the same time, since much of it is waiting."""
        with ThreadPoolExecutor(1) as other:
            of_triton = other.submit(call, self.triton)
            try:
                of_host = call(self.host)
            finally:
                of_triton.exception()
            return of_triton.result(), of_host

    def load(self, models: Iterable[str]) -> None:
        """Have these models ready on both. Raises: InferenceServerException where one cannot be loaded."""
        with self._lock:
            missing = [model for model in models if model not in self._loaded]
            if missing:
                self.ask(lambda server: load_all(server, missing))
                self._loaded.update(missing)


def load_all(server: Server, models: Sequence[str]) -> None:
    with rest_client(server) as made:
        for model in models:
            made.load_model(model)


def rest_client(server: Server, **options: Any) -> http_client.InferenceServerClient:
    return http_client.InferenceServerClient(
        f"127.0.0.1:{server.http_port}", network_timeout=LOAD_SECONDS, connection_timeout=LOAD_SECONDS, **options
    )


def start_triton(repositories: Sequence[Path], log_path: Path, extra_args: Sequence[str]) -> TritonProcess:
    first, *others = repositories
    return TritonProcess.start(
        first,
        # Its front waits for idle connections of clients, and a test that failed may have left some.
        extra_args=[
            *(f"--model-repository={path}" for path in others),
            "--exit-timeout-secs=3",
            *extra_args,
            *cache_directory(),
        ],
        log_path=log_path,
    )


def cache_directory() -> list[str]:
    """Where the wheel's response caches lie: Triton's own default is a folder of its container."""
    package = importlib.util.find_spec("pytriton")
    assert package is not None and package.origin is not None
    return [f"--cache-directory={Path(package.origin).parent / 'tritonserver' / 'caches'}"]


def start_host(repositories: Sequence[Path], directory: Path, extra_args: Sequence[str]) -> HostProcess:
    return HostProcess.start(repositories, directory, extra_args=extra_args)
