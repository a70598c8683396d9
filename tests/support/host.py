"""The real engine host as a child process: `pointsman host` with a model repository."""

from collections.abc import Sequence
from pathlib import Path
from typing import Self

from tests.support.child import Child


class HostProcess(Child):
    """One engine host; its instances share its process group."""

    what = "host"
    start_timeout_seconds = 120.0

    @classmethod
    def start(cls, repositories: Sequence[Path], directory: Path, *, extra_args: Sequence[str] = ()) -> Self:
        """Start a host of these model repositories."""
        command = ["engines", "host"]
        command += [part for repository in repositories for part in ("--model-repository", str(repository))]
        command += ["--http-port", "0", "--grpc-port", "0", "--metrics-port", "0", *extra_args]
        return cls.start_module(command, directory)

    @property
    def metrics_port(self) -> int:
        return self.port("metrics")

    @property
    def metrics_url(self) -> str:
        return f"http://127.0.0.1:{self.metrics_port}/metrics"
