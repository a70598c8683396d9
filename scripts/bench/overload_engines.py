"""The engines that are overloaded: a small server of known capacity, a paged engine, a Triton."""

import json
import os
import random
import sys
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.host_servers import start_triton
from bench.llm_model import SHAPES, Words, model_folder
from bench.processes import SCRIPTS, free_port
from bench.programs import Site, start_on_port, wait_until

SERVERS, SECONDS = 8, 0.1
_SHAPE = "tiny"
_PROMPT_TOKENS, _ANSWER_TOKENS = 32, 24
_SEQUENCES = 8

_SLEEPER = f"""import random
import time

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        replies = []
        for request in requests:
            time.sleep({SECONDS} * random.uniform(0.75, 1.25))
            output = pb_utils.Tensor("y", np.zeros(1, np.float32))
            replies.append(pb_utils.InferenceResponse([output]))
        return replies
"""
_SLEEPER_CONFIG = f"""name: "m"
backend: "python"
max_batch_size: 0
input [ {{ name: "x" data_type: TYPE_FP32 dims: [ 1 ] }} ]
output [ {{ name: "y" data_type: TYPE_FP32 dims: [ 1 ] }} ]
instance_group [ {{ kind: KIND_CPU count: {SERVERS} }} ]
"""


@dataclass(frozen=True, slots=True)
class OverloadEngine:
    """`start` returns the engine's port; `body` makes that of one request; so many requests at a time fill it."""

    protocol: str
    path: str
    body: Callable[[], bytes]
    concurrency: int
    start: Callable[[Site, str, ExitStack], int]


def _start_small(site: Site, name: str, stack: ExitStack) -> int:
    port = free_port()
    module = [sys.executable, "-m", "bench.overload_upstream", str(port), str(SERVERS), str(SECONDS)]
    start_on_port(site, name, module, port, {}, {"PYTHONPATH": os.fspath(SCRIPTS)})
    return port


def _start_paged(site: Site, name: str, stack: ExitStack) -> int:
    folder = site.folder / name / "m"
    (folder / "1").mkdir(parents=True)
    parameters = {
        "MODEL": model_folder(SHAPES[_SHAPE], "float32"),
        "DEVICE": "cpu",
        "DTYPE": "float32",
        "THREADS": 1,
        "NUM_BLOCKS": 400,
        "MAX_CONTEXT": 1024,
        "MAX_SEQUENCES": _SEQUENCES,
    }
    lines = [f'parameters {{ key: "{key}" value {{ string_value: "{value}" }} }}' for key, value in parameters.items()]
    config = 'name: "m"\nbackend: "paged"\ninstance_group { count: 1 kind: KIND_MODEL }\n'
    (folder / "config.pbtxt").write_text(config + "\n".join(lines) + "\n")
    ready = site.folder / f"{name}-ready.json"
    argv: list[Any] = [sys.executable, "-m", "engines", "host", "--model-repository", folder.parent]
    argv += ["--http-port", "0", "--grpc-port", "0", "--metrics-port", "0", "--ready-file", ready]
    process = site.children.spawn(name, argv)
    wait_until(lambda: ready.exists() and ready.stat().st_size > 0, site, process, name, 240.0)
    return int(json.loads(ready.read_text())["http"])


def _start_triton(site: Site, name: str, stack: ExitStack) -> int:
    folder: Path = site.folder / name / "m"
    (folder / "1").mkdir(parents=True)
    (folder / "1" / "model.py").write_text(_SLEEPER)
    (folder / "config.pbtxt").write_text(_SLEEPER_CONFIG)
    return start_triton(site, folder.parent, ["m"], stack).ports["rest"]


def _prompt() -> bytes:
    words = Words(SHAPES[_SHAPE].vocabulary)
    prompt = words.text(words.prompt(_PROMPT_TOKENS, (3, random.getrandbits(30))))
    body = {"model": "m", "prompt": prompt, "max_tokens": _ANSWER_TOKENS, "temperature": 0}
    return json.dumps(body).encode()


_CHAT = b'{"model":"m","messages":[{"role":"user","content":"Is it overloaded?"}]}'
_TENSORS = b'{"inputs":[{"name":"x","datatype":"FP32","shape":[1],"data":[1.0]}]}'

ENGINES = {
    "small": OverloadEngine("openai", "/v1/chat/completions", lambda: _CHAT, SERVERS, _start_small),
    "paged": OverloadEngine("openai", "/v1/completions", _prompt, _SEQUENCES, _start_paged),
    "triton": OverloadEngine("kserve", "/v2/models/m/infer", lambda: _TENSORS, SERVERS, _start_triton),
}
