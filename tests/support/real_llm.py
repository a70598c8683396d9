"""Real language-model engines with the tiny model (tiny_llm.py), each started as its users do.

llama_cpp       llama.cpp's own server, as the package xllamacpp brings it
mlx             python -m mlx_lm server
transformers    transformers serve

python -m tests.support.real_llm ENGINE --home DIRECTORY --ready-file FILE
"""

import argparse
import importlib.util
import json
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Self
from urllib.error import URLError
from urllib.request import urlopen

from tests.support.child import POLL_INTERVAL_SECONDS, Child
from tests.support.ports import free_port
from tests.support.tiny_llm import NAME, write_cache, write_gguf

PACKAGES = {"llama_cpp": "xllamacpp", "mlx": "mlx_lm", "transformers": "transformers.cli.serving"}
NUM_SLOTS = 4  # concurrent requests of llama.cpp
CONTEXT_TOKENS = 65536  # of all its slots


class RealLLM(Child):
    """One of them, for use in a test. Its exit code is not checked."""

    what = "real-llm"
    start_timeout_seconds = 240.0

    @classmethod
    def start(cls, engine: str, directory: Path) -> Self:
        """Start one; its model is called `tiny_llm.NAME`."""
        return cls.start_module(["tests.support.real_llm", engine, "--home", "home"], directory)

    def stop(self, timeout_seconds: float = 0.0) -> None:
        self.kill()


def why_missing(engine: str) -> str | None:
    """The reason why an engine cannot run here, or None."""
    package = PACKAGES[engine]
    try:
        found = importlib.util.find_spec(package) is not None
    except ModuleNotFoundError:
        found = False
    return None if found else f"the package {package.partition('.')[0]} is not installed"


def run_llama_cpp(home: Path, port: int) -> None:
    import xllamacpp

    parameters = xllamacpp.CommonParams()
    parameters.model.path = str(write_gguf(home / "tiny.gguf"))
    parameters.model_alias = {NAME}
    parameters.port = port
    parameters.n_parallel = NUM_SLOTS
    parameters.n_ctx = CONTEXT_TOKENS
    parameters.cpuparams.n_threads = 1
    parameters.endpoint_metrics = True
    server = xllamacpp.Server(parameters)
    signal.pause()
    del server


def run_mlx(home: Path, port: int) -> None:
    write_cache(home)
    sys.argv = ["mlx_lm.server", "--model", NAME, "--port", str(port)]
    from mlx_lm.server import main

    main()


def run_transformers(home: Path, port: int) -> None:
    write_cache(home)
    sys.argv = ["transformers", "serve", NAME, "--host", "127.0.0.1", "--port", str(port), "--device", "cpu"]
    import torch
    from transformers.cli.transformers import main

    torch.set_num_threads(1)
    main()


RUN = {"llama_cpp": run_llama_cpp, "mlx": run_mlx, "transformers": run_transformers}


def report_when_ready(port: int, ready_file: Path) -> None:
    """Write the port once the engine answers, since none of them can report it."""
    while True:
        try:
            urlopen(f"http://127.0.0.1:{port}/health", timeout=120).close()
        except (URLError, OSError):
            time.sleep(POLL_INTERVAL_SECONDS)
        else:
            break
    aside = ready_file.with_suffix(".tmp")
    aside.write_text(json.dumps({"http": port}))
    aside.rename(ready_file)


def main() -> None:
    parser = argparse.ArgumentParser(description="A real engine on the tiny model.")
    parser.add_argument("engine", choices=list(RUN))
    parser.add_argument("--home", type=Path, required=True, help="for the model's files")
    parser.add_argument("--ready-file", type=Path, required=True)
    reply = parser.parse_args()
    home = reply.home.resolve()
    home.mkdir(parents=True, exist_ok=True)
    os.environ |= {"HF_HOME": str(home), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    port = free_port()
    threading.Thread(target=report_when_ready, args=(port, reply.ready_file.resolve()), daemon=True).start()
    RUN[reply.engine](home, port)


if __name__ == "__main__":
    main()
