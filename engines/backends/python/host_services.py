"""The host's services for models: its log, control of models, custom metrics."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from enum import Enum
from functools import partial
from typing import ClassVar, TypeVar

from engines.backends.python.errors import TritonModelException
from engines.core.errors import EngineError
from engines.core.metric_kinds import check_change
from engines.ipc.host_connection import HostClient

T = TypeVar("T")


class Session:
    """The model of this process: a Python instance has a process of its own."""

    def __init__(self) -> None:
        self.client: HostClient | None = None
        self.model_directory = ""
        self.is_executing = False  # initialized, and not yet finalizing

    def host(self) -> HostClient:
        """Raises: TritonModelException if the code runs outside of a host."""
        if self.client is None:
            raise TritonModelException("this needs the engine host, which has not loaded this code")
        return self.client


session = Session()


class Level(Enum):
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"
    VERBOSE = "verbose"


def _log(message: str, level: Level = Level.INFO) -> None:
    if not isinstance(message, str):
        raise TypeError(f"a line of the log is a str, not {type(message).__name__}")
    if not isinstance(level, Level):
        raise TypeError(f"a level of the log is one of Logger's, not {level!r}")
    frame = sys._getframe(1)
    session.host().log(level.value, message, frame.f_code.co_filename, frame.f_lineno)


class Logger:
    """Lines for the host's log, with the place in the model's code that they come from."""

    LogLevel: ClassVar = Level
    INFO: ClassVar = Level.INFO
    WARNING: ClassVar = Level.WARNING
    ERROR: ClassVar = Level.ERROR
    VERBOSE: ClassVar = Level.VERBOSE

    log = staticmethod(_log)
    log_info = staticmethod(partial(_log, level=Level.INFO))
    log_warn = staticmethod(partial(_log, level=Level.WARNING))
    log_error = staticmethod(partial(_log, level=Level.ERROR))
    log_verbose = staticmethod(partial(_log, level=Level.VERBOSE))


def load_model(model_name: str, config: str = "", files: Mapping[str, bytes | str] | None = None) -> None:
    """Load or reload a model; `files` are its contents by `file:PATH`, with `config` as its configuration.

    Raises: TritonModelException.
    """
    if files is not None and not isinstance(files, Mapping):
        raise TritonModelException(
            f"failed to load model '{model_name}', files should be a dictionary of file paths and file contents"
        )
    contents = {path: data.encode() if isinstance(data, str) else bytes(data) for path, data in (files or {}).items()}
    _call_host("Failed to load model: ", lambda: session.host().control("load", model_name, config or None, contents))


def unload_model(model_name: str, unload_dependents: bool = False) -> None:
    """Raises: TritonModelException."""
    _call_host(
        "Failed to unload model: ", lambda: session.host().control("unload", model_name, bool(unload_dependents))
    )


def is_model_ready(model_name: str, model_version: str = "") -> bool:
    """Raises: TritonModelException if the version is no number."""
    if model_version and not (model_version.isdecimal() and int(model_version) > 0):
        raise TritonModelException(
            f"Failed to check model readiness: failed to get model version from specified version string "
            f"'{model_version}', version should be an integral value > 0"
        )
    return bool(
        _call_host(
            "Failed to check model readiness: ",
            lambda: session.host().control("is_ready", model_name, model_version),
        )
    )


class MetricKind(Enum):
    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


class Metric:
    """One metric of a family, from `MetricFamily.Metric`."""

    def __init__(self, family: MetricFamily, number: int) -> None:
        self._family = family  # a family outlives its metrics
        self._number = number

    def increment(self, value: float) -> None:
        """Raises: TritonModelException for a histogram, and for a negative value of a counter."""
        self._change("increment", value)

    def set(self, value: float) -> None:
        """Raises: TritonModelException if it is no gauge."""
        self._change("set", value)

    def observe(self, value: float) -> None:
        """Raises: TritonModelException if it is no histogram."""
        self._change("observe", value)

    def _change(self, operation: str, value: float) -> None:
        kind = self._family.kind.value
        _call_host(f"Failed to {operation} metric value: ", lambda: check_change(kind, operation, value))
        session.host().measure(operation, self._number, float(value))

    def value(self) -> float:
        """Raises: TritonModelException if it has no single one."""
        return float(_call_host("Failed to get metric value: ", lambda: session.host().control("value", self._number)))


class MetricFamily:
    """Metrics of one name with different labels."""

    COUNTER: ClassVar = MetricKind.COUNTER
    GAUGE: ClassVar = MetricKind.GAUGE
    HISTOGRAM: ClassVar = MetricKind.HISTOGRAM

    def __init__(self, name: str, description: str, kind: MetricKind) -> None:
        self.kind = kind
        self._number = _call_host(
            "Error when creating MetricFamily: ",
            lambda: session.host().control("family", name, description, kind.value),
        )

    def Metric(self, labels: Mapping[str, str] | None = None, buckets: Iterable[float] | None = None) -> Metric:  # noqa: N802
        """Raises: TritonModelException if the labels are no dict, or the buckets do not fit the kind."""
        if labels is not None and not isinstance(labels, Mapping):
            raise TritonModelException("Failed to create metric. Labels must be a dictionary.")
        if buckets is not None and not isinstance(buckets, list):
            raise TritonModelException("Failed to create metric. Buckets must be a list.")
        if buckets is not None and self.kind is not MetricKind.HISTOGRAM:
            raise TritonModelException("Failed to create metric. Unexpected buckets found.")
        if buckets is None and self.kind is MetricKind.HISTOGRAM:
            raise TritonModelException("Failed to create metric. Missing required buckets.")
        edges = None if buckets is None else tuple(map(float, buckets))
        number = _call_host(
            "Error when creating Metric: ",
            lambda: session.host().control("metric", self._number, dict(labels or {}), edges),
        )
        return Metric(self, number)


def _call_host(prefix: str, call: Callable[[], T]) -> T:
    try:
        return call()
    except EngineError as error:
        raise TritonModelException(f"{prefix}{error.message}") from None
