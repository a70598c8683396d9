"""Tiny random models of every family, as folders that transformers writes: config.json, safetensors, a tokenizer.

    folder = tiny_model("qwen3")                                    # built once, then cached
    folder = tiny_model("llama", tie_word_embeddings=True)          # any field of the family's config
    model = transformers_model(folder)                              # the same weights in transformers, float32

Weights are seeded and larger than those of transformers; norms and biases are random too, so that a mistake anywhere
shows in the logits. Folders are in the system's temporary directory, named by a hash of their inputs.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

VOCAB_SIZE = 320  # of the models; the tokenizer has fewer, as real ones have
MERGES = [("t", "h"), ("Ġ", "t"), ("i", "n"), ("e", "r"), ("a", "n"), ("Ġt", "h"), ("Ġ", "a"), ("o", "n"), ("Ġth", "e")]
BOS, EOS, IM_START, IM_END = "<|bos|>", "<|eos|>", "<|im_start|>", "<|im_end|>"
SPECIALS = (BOS, EOS, IM_START, IM_END)
FIRST_SPECIAL = 256 + len(MERGES)
BOS_ID, EOS_ID, IM_START_ID, IM_END_ID = range(FIRST_SPECIAL, FIRST_SPECIAL + 4)
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

_SIZES = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 2048,
    "bos_token_id": BOS_ID,
    "eos_token_id": [EOS_ID, IM_END_ID],
}
_EXPERTS = {"num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 64}
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", {}),
    "mistral": ("Mistral", {"sliding_window": None, "head_dim": 32}),
    "qwen2": ("Qwen2", {}),
    "qwen3": ("Qwen3", {"head_dim": 32}),
    "mixtral": ("Mixtral", {"num_local_experts": 4, "num_experts_per_tok": 2}),
    "qwen2_moe": ("Qwen2Moe", {**_EXPERTS, "shared_expert_intermediate_size": 96, "mlp_only_layers": [1]}),
    "qwen3_moe": ("Qwen3Moe", {**_EXPERTS, "head_dim": 32, "norm_topk_prob": True}),
}


def tiny_model(family: str, seed: int = 0, **fields: Any) -> Path:
    """A folder with a random model of the family; `fields` change its config. It is shared: copy it to edit it."""
    versions = [importlib.metadata.version(package) for package in ("torch", "transformers")]
    facts = [family, seed, fields, versions, Path(__file__).read_text()]
    name = hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:16]
    folder = Path(tempfile.gettempdir()) / "pointsman-tiny-models" / f"{family}-{name}"
    if not folder.is_dir():
        folder.parent.mkdir(exist_ok=True)
        building = Path(tempfile.mkdtemp(dir=folder.parent))
        _build(building, family, seed, fields)
        try:
            building.rename(folder)
        except OSError:  # another process was first
            shutil.rmtree(building)
    return folder


def transformers_model(folder: Path, **options: Any) -> Any:
    """The folder's model in transformers, in float32, with the eager attention implementation."""
    import torch
    import transformers

    transformers.logging.disable_progress_bar()
    options = {"dtype": torch.float32, "attn_implementation": "eager", **options}
    return transformers.AutoModelForCausalLM.from_pretrained(folder, **options).eval()


def write_tokenizer(folder: Path) -> None:
    """Write a byte-level tokenizer with a chat template: ids 0 .. 255 are bytes, then a few merges, then the special
    tokens."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    characters = _characters_of_bytes()
    vocabulary = {character: byte for byte, character in enumerate(characters)}
    for left, right in MERGES:
        vocabulary[left + right] = len(vocabulary)
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=MERGES))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(special, special=True, normalized=False) for special in SPECIALS])
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": BOS,
        "eos_token": IM_END,
        "chat_template": CHAT_TEMPLATE,
        "clean_up_tokenization_spaces": False,
        "model_max_length": 2048,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=1))


def _characters_of_bytes() -> list[str]:
    """GPT-2's printable character of each byte."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = iter(range(256, 512))
    return [chr(byte) if byte in printable else chr(next(others)) for byte in range(256)]


def _build(folder: Path, family: str, seed: int, fields: dict[str, Any]) -> None:
    import torch
    import transformers

    transformers.logging.disable_progress_bar()
    prefix, own = FAMILIES[family]
    config = getattr(transformers, f"{prefix}Config")(**{**_SIZES, **own, **fields})
    model = getattr(transformers, f"{prefix}ForCausalLM")(config)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if parameter.ndim == 1:
                parameter.copy_(noise * 0.2 + (0.0 if name.endswith("bias") else 1.0))
            elif "embed_tokens" in name or "lm_head" in name:
                parameter.copy_(noise)
            else:
                parameter.copy_(noise * 1.5 / parameter.shape[-1] ** 0.5)
    model.save_pretrained(folder)
    write_tokenizer(folder)
