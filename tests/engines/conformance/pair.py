"""Two servers of the same repositories, a real Triton and the host, that receive the same requests."""

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
from tests.support.waiting import eventually

T = TypeVar("T")

TESTS = Path(__file__).parents[2]
SIMPLE_MODELS = TESTS / "models"
ENGINE_MODELS = TESTS / "engines" / "models"
BROKEN_MODELS = Path(__file__).parent / "broken_models"
REPOSITORIES = (SIMPLE_MODELS, ENGINE_MODELS, BROKEN_MODELS)

# Request headers that a model sees as parameters, so that a test can check that they were forwarded; in RE2's syntax.
_PATTERN = r"x-forward-.*|^x-(?P<kind>\pL[[:digit:]])\z|(?-i)X-Case-.|\Qx.y\E"
FORWARDED = [f"--{front}-header-forward-pattern={_PATTERN}" for front in ("http", "grpc")]
CACHE = ["--cache-config=local,size=4194304"]
SUMMARIES = ["--metrics-config=summary_latencies=true", "--metrics-config=summary_quantiles=0.5:0.05,1:0.001"]
# The trace settings need a key, with another name for each front.
RESTRICTED = ["--http-restricted-api=trace:trace-key=secret", "--grpc-restricted-protocol=trace:trace-key=secret"]
EXPLICIT = [
    "--model-control-mode=explicit",
    "--rate-limit=execution_count",
    *FORWARDED,
    *CACHE,
    *SUMMARIES,
    *RESTRICTED,
]

# Triton takes some seconds to load a model while others load.
LOAD_SECONDS = 60.0


@dataclass
class Pair:
    """The two servers. Models are loaded on both when they are first needed, because loading costs most of the time."""

    triton: Server
    host: Server
    _loaded: set[str] = field(default_factory=set)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def ask(self, call: Callable[[Server], T]) -> tuple[T, T]:
        """The results of a call on Triton and on the host. The calls run concurrently, as much of their time is
        waiting."""
        with ThreadPoolExecutor(1) as other:
            of_triton = other.submit(call, self.triton)
            try:
                of_host = call(self.host)
            finally:
                of_triton.exception()
            return of_triton.result(), of_host

    def load(self, models: Iterable[str]) -> None:
        """Load the models that are not yet ready on both. Raises: InferenceServerException where one cannot be
        loaded."""
        with self._lock:
            missing = [model for model in models if model not in self._loaded]
            if missing:
                self.ask(lambda server: load_all(server, missing))
                self._loaded.update(missing)

    def restart_on_triton(self, models: Iterable[str]) -> None:
        """Unload and load models on Triton, which starts new stub processes for them."""
        with self._lock, rest_client(self.triton) as rest:
            for model in models:
                rest.unload_model(model)
                eventually(lambda model=model: not rest.is_model_ready(model))  # type: ignore[misc]
                rest.load_model(model)


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
        # On exit Triton waits for idle client connections, which a failed test may leave open.
        extra_args=[
            *(f"--model-repository={path}" for path in others),
            "--exit-timeout-secs=3",
            *extra_args,
            *cache_directory(),
        ],
        log_path=log_path,
    )


def cache_directory() -> list[str]:
    """Where the wheel's response caches are: Triton's default is a folder of its container."""
    package = importlib.util.find_spec("pytriton")
    assert package is not None and package.origin is not None
    return [f"--cache-directory={Path(package.origin).parent / 'tritonserver' / 'caches'}"]


def start_host(repositories: Sequence[Path], directory: Path, extra_args: Sequence[str]) -> HostProcess:
    return HostProcess.start(repositories, directory, extra_args=extra_args)
