"""The commands of the engines: programs of their own, run by `python -m engines`, listed here for one command line."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

import typer

# What is theirs is read by them, `--help` too.
CONTEXT = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}

SERVICES = {
    "host": "Serve a Triton model repository, on a Mac, CPU or CUDA: REST, gRPC and metrics.",
    "llm": "Serve a language model from its folder: OpenAI's API, Triton's V2, gRPC, metrics.",
    "fleet": "Start engine hosts and other engines as a YAML file says, watch them, and tell the gateway of them.",
    "samples": "Write sample models that run here, a fleet that serves them, and rules for the gateway.",
    "analyze": "Find the batch size, instances and delay that suit a model, under real load.",
    "convert": "Turn a PyTorch or ONNX model into a CoreML package in a model repository.",
}


def service(name: str) -> Callable[[typer.Context], None]:
    """The command that becomes the program `python -m engines NAME`, with the arguments that follow."""

    def run(context: typer.Context) -> None:
        sys.stdout.flush()
        os.execv(sys.executable, [sys.executable, "-m", "engines", name, *context.args])

    run.__doc__ = SERVICES[name]
    return run
