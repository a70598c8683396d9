"""`pointsman llm` as a child process, and a tiny model for it."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
from safetensors.numpy import save_file

from tests.engines.paged.support.tiny_models import tiny_model
from tests.support.child import Child
from tests.support.wire import Reply, send

NAME = "tiny"
MAX_CONTEXT = 256
# Tools come before the conversation, as JSON.
TEMPLATE = (
    "{% if tools %}<|im_start|>tools\n{{ tools | tojson }}<|im_end|>\n{% endif %}"
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def tiny_folder(directory: Path) -> Path:
    """A model with random weights, greedy by default, whose template supports tools."""
    folder = directory / NAME
    shutil.copytree(tiny_model("llama"), folder)
    results = json.loads((folder / "generation_config.json").read_text())
    results = {name: value for name, value in results.items() if name.endswith("_id")} | {"do_sample": False}
    (folder / "generation_config.json").write_text(json.dumps(results))
    config = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps({**config, "chat_template": TEMPLATE}))
    return folder


def adapter_folder(folder: Path, directory: Path) -> Path:
    """An adapter with random weights for a tiny model, as PEFT writes it."""
    config = json.loads((folder / "config.json").read_text())
    hidden, rank = config["hidden_size"], 4
    generator = np.random.default_rng(0)
    tensors = {}
    for layer in range(config["num_hidden_layers"]):
        name = f"base_model.model.model.layers.{layer}.self_attn.q_proj"
        tensors[f"{name}.lora_A.weight"] = generator.standard_normal((rank, hidden)).astype(np.float32)
        tensors[f"{name}.lora_B.weight"] = generator.standard_normal((hidden, rank)).astype(np.float32)
    directory.mkdir()
    save_file(tensors, directory / "adapter_model.safetensors")
    results = {"peft_type": "LORA", "r": rank, "lora_alpha": 8, "target_modules": ["q_proj"], "bias": "none"}
    (directory / "adapter_config.json").write_text(json.dumps(results))
    return directory


class LLMProcess(Child):
    """A server process of one model."""

    what = "llm"
    start_timeout_seconds = 240.0

    @classmethod
    def start(cls, folder: Path, directory: Path, *, extra_args: Sequence[str] = ()) -> Self:
        command = ["engines", "llm", "--model", str(folder), "--threads", "1", "--dtype", "float32", "--log-info"]
        command += ["--http-port", "0", "--grpc-port", "0", "--metrics-port", "0", *extra_args]
        return cls.start_module(command, directory)

    def post(self, path: str, body: Any) -> Reply:
        """Post a JSON body; bytes are sent unchanged."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        return send(self.http_port, "POST", path, data, {"content-type": "application/json"})

    def get(self, path: str) -> Reply:
        return send(self.http_port, "GET", path)

    def generate(self, prompt: str = "", **fields: Any) -> dict[str, Any]:
        """Send a V2 generate request and return its reply."""
        request = ({"text_input": prompt} if prompt else {}) | {"exclude_input_in_output": True, **fields}
        reply = self.post(f"/v2/models/{NAME}/generate", request)
        assert reply.status == 200, reply.body
        results: dict[str, Any] = json.loads(reply.body)
        return results

    def metrics(self) -> dict[str, float]:
        """All metric samples by name, with the outcome or the bucket in the key where there is one."""
        text = send(self.port("metrics"), "GET", "/metrics").body.decode()
        found: dict[str, float] = {}
        for name, labels, value in re.findall(r"^([\w:]+)(\{.*\})? (\S+)$", text, re.MULTILINE):
            results = re.search(r'(?:le|outcome)="[^"]*"', labels)
            found[f"{name}{{{results[0]}}}" if results else name] = float(value)
        return found

    def is_idle(self) -> bool:
        """Whether no request is active and no block is in use."""
        metrics = self.metrics()
        busy = ("vllm:num_requests_running", "vllm:num_requests_waiting", "pointsman_llm_kv_blocks_used")
        return not any(metrics[name] for name in busy)
