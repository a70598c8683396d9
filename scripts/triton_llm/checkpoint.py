"""What a checkpoint folder says of its model: its kind, family, special tokens and tokenizer files."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "tokenizer.model",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "chat_template.jinja",
)

# Hugging Face's `model_type` -> the folder of TensorRT-LLM's examples/models with its convert_checkpoint.py.
CONVERTERS = {
    "llama": "core/llama",
    "mistral": "core/llama",
    "mixtral": "core/llama",
    "qwen2": "core/qwen",
    "qwen2_moe": "core/qwen",
    "qwen3": "core/qwen",
    "qwen3_moe": "core/qwen",
    "gemma": "core/gemma",
    "gemma2": "core/gemma",
    "gemma3_text": "core/gemma",
    "phi": "core/phi",
    "phi3": "core/phi",
    "gpt2": "core/gpt",
    "starcoder2": "core/gpt",
}


class CheckpointError(Exception):
    """The folder is no checkpoint that can be exported; the message says what is missing."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A Hugging Face folder, or a NeMo checkpoint that is converted to one first."""

    path: Path
    is_nemo: bool
    model_type: str  # "" for NeMo
    end_ids: tuple[int, ...]  # any of these tokens ends a text
    pad_id: int
    has_chat_template: bool

    @property
    def converter(self) -> str:
        """Raises: CheckpointError."""
        try:
            return CONVERTERS[self.model_type]
        except KeyError:
            known = ", ".join(sorted(CONVERTERS))
            raise CheckpointError(
                f"{self.path}/config.json: no engine converter is known for model_type {self.model_type!r} "
                f"(known: {known}). Use --backend llmapi, which needs no engine."
            ) from None


def read(path: Path, tokenizer: Path) -> Checkpoint:
    """The checkpoint at `path`, whose tokenizer is in the folder `tokenizer`.

    Raises: CheckpointError.
    """
    if not path.exists():
        raise CheckpointError(f"{path} does not exist")
    is_nemo = path.suffix == ".nemo" or (path / "context").is_dir()
    if not (tokenizer / "tokenizer.json").is_file() and not (tokenizer / "tokenizer.model").is_file():
        hint = "give --tokenizer a Hugging Face folder of the same model" if is_nemo else "--tokenizer names another"
        raise CheckpointError(f"{tokenizer} has neither tokenizer.json nor tokenizer.model: {hint}")
    config: dict[str, Any] = {}
    if not is_nemo:
        if not (path / "config.json").is_file():
            raise CheckpointError(f"{path} has no config.json (Hugging Face), and is no .nemo file or NeMo 2 folder")
        config = _json(path / "config.json")
    generation = _json_if_there(tokenizer / "generation_config.json")
    names = _json_if_there(tokenizer / "tokenizer_config.json")
    end_ids = _ids(generation.get("eos_token_id", config.get("eos_token_id")))
    if not end_ids:
        end_ids = _ids(_json_if_there(tokenizer / "config.json").get("eos_token_id"))
    if not end_ids:
        raise CheckpointError(f"neither generation_config.json nor config.json in {tokenizer} has an eos_token_id")
    pads = _ids(generation.get("pad_token_id", config.get("pad_token_id")))
    return Checkpoint(
        path,
        is_nemo,
        str(config.get("model_type", "")),
        end_ids,
        pads[0] if pads else end_ids[0],
        bool(names.get("chat_template")) or (tokenizer / "chat_template.jinja").is_file(),
    )


def _json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path}: {error}") from None
    if not isinstance(content, dict):
        raise CheckpointError(f"{path}: not a JSON object")
    return content


def _json_if_there(path: Path) -> dict[str, Any]:
    return _json(path) if path.is_file() else {}


def _ids(value: Any) -> tuple[int, ...]:
    values = value if isinstance(value, list) else [value]
    return tuple(each for each in values if isinstance(each, int) and each >= 0)
