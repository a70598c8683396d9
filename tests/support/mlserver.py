"""A real MLServer as a child process, with the models of `mlserver_models`."""

import json
import shutil
import tempfile
from pathlib import Path
from typing import Self

from tests.support.child import REPOSITORY
from tests.support.outsiders import Outsider, environment, fetch
from tests.support.ports import free_port

# Its library versions conflict with the project's, so it has its own environment.
REQUIREMENTS = ("mlserver>=1.7", "uvloop<0.21")
BENCHMARKS = REPOSITORY / ".bench-mlserver" / "bin" / "python"
MODELS = {"streamer": "Streamer", "doubler": "Doubler"}
SOURCE = Path(__file__).parent / "mlserver_models" / "streamer.py"


def python() -> Path:
    """A Python that has MLServer: the benchmarks', or a separate one.

    Raises: NotHereError.
    """
    return BENCHMARKS if BENCHMARKS.exists() else environment("mlserver", REQUIREMENTS)


class MLServer(Outsider):
    """One MLServer without worker processes. Ports: http, grpc, metrics."""

    what = "mlserver"

    @classmethod
    def start(cls) -> Self:
        """Start one; `wait_ready` returns once it answers.

        Raises: NotHereError.
        """
        interpreter = python()
        directory = Path(tempfile.mkdtemp(prefix="mlserver-"))
        ports = {name: free_port() for name in ("http", "grpc", "metrics")}
        settings = {"host": "127.0.0.1", "parallel_workers": 0, "debug": False, "metrics_dir": str(directory)}
        settings |= {f"{name}_port": port for name, port in ports.items()}
        (directory / "settings.json").write_text(json.dumps(settings))
        for model, implementation in MODELS.items():
            (directory / model).mkdir()
            shutil.copy(SOURCE, directory / model)
            about = {"name": model, "implementation": f"streamer.{implementation}", "parameters": {"version": "1"}}
            (directory / model / "model-settings.json").write_text(json.dumps(about))
        return cls.run([str(interpreter.parent / "mlserver"), "start", "."], directory, ports, {})

    def is_ready(self) -> bool:
        return all(fetch(f"{self.http_url}/v2/models/{model}/ready")[0] == 200 for model in MODELS)

    def stop(self) -> None:
        super().stop()
        shutil.rmtree(self.directory, ignore_errors=True)
