"""The model that all engines serve: a Llama of about 150 M parameters, written once into a cache of its own.

Its weights are seeded random numbers except for two matrices: a token's embedding points to the next word in the head,
far above the noise of attention and MLP. So engines do all of their work, in any datatype, and yet the answer to each
prompt is known: a benchmark that checks every token cannot measure a wrong one. The words' order is one long random
ring, so that no text repeats and speculation gains nothing.

Words are three or four letters after a space, each one token of a byte-level BPE, so that every engine's tokenizer cuts
a text alike.
"""

import itertools
import json
import os
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

SEED = 20
LETTERS = "abcdefghijklmnopqrstuvwxyz"
SPACE = "\u0120"  # a space in GPT-2's vocabulary
BEGIN, END = "<|begin|>", "<|end|>"
# Attention and MLP add so little to an embedding that the next word stays far ahead, but enough that every matrix
# matters.
NOISE = 0.02
# Logit of the right next token; those of others have a deviation of about 1.
CONFIDENCE = 30.0
# A change of the files' format needs a new cache.
FORMAT = 1


@dataclass(frozen=True, slots=True)
class Shape:
    """A Llama's shape. Sizes in features; `context_tokens` is enough for a prompt of 4,000 and its answer."""

    hidden: int = 768
    layers: int = 16
    heads: int = 12
    kv_heads: int = 4
    mlp: int = 2048
    vocabulary: int = 32_000
    context_tokens: int = 8192

    @property
    def head_size(self) -> int:
        return self.hidden // self.heads

    @property
    def parameters(self) -> int:
        attention = self.hidden * self.head_size * (2 * self.heads + 2 * self.kv_heads)
        layer = attention + 3 * self.hidden * self.mlp + 2 * self.hidden
        return self.layers * layer + 2 * self.vocabulary * self.hidden + self.hidden


SHAPES = {
    "150m": Shape(),
    "tiny": Shape(hidden=128, layers=2, heads=4, kv_heads=2, mlp=256, vocabulary=2048),  # for the tests
    "300m": Shape(hidden=1024, layers=22, heads=16, kv_heads=4, mlp=2816),
}


class Words:
    """The vocabulary, and the order of the words.

    Token ids: 256 bytes, then prefixes of words and words, then BEGIN and END.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        alphabet = list(_byte_alphabet().values())
        stems = [SPACE + "".join(each) for length in (1, 2) for each in itertools.product(LETTERS, repeat=length)]
        grown = (SPACE + "".join(each) for length in (3, 4) for each in itertools.product(LETTERS, repeat=length))
        self.first_word = len(alphabet) + len(stems)
        room = size - self.first_word - 2
        self.tokens = [*alphabet, *stems, *itertools.islice(grown, room), BEGIN, END]
        self.begin, self.end = size - 2, size - 1

    @cached_property
    def merges(self) -> list[str]:
        """The merges in the order of their ranks: each token is the one a letter shorter, and that letter."""
        return [f"{token[:-1]} {token[-1]}" for token in self.tokens[len(_byte_alphabet()) : self.begin]]

    @cached_property
    def after(self) -> np.ndarray:
        """The id of the next word for each token: words form one ring, and all other tokens lead into it."""
        ring = np.random.default_rng(SEED).permutation(np.arange(self.first_word, self.begin))
        after = np.full(self.size, ring[0])
        after[ring] = np.roll(ring, -1)
        return after

    def answer(self, prompt: Sequence[int], num_tokens: int) -> list[int]:
        """The model's answer to a prompt."""
        found, token = [], prompt[-1]
        for _ in range(num_tokens):
            token = int(self.after[token])
            found.append(token)
        return found

    def text(self, ids: Iterable[int]) -> str:
        return "".join(self.tokens[token] for token in ids).replace(SPACE, " ")

    def prompt(self, num_tokens: int, seed: Sequence[int]) -> list[int]:
        """Random words; equal for equal seeds."""
        random = np.random.default_rng((SEED, *seed))
        return [int(token) for token in random.integers(self.first_word, self.begin, num_tokens)]


def cache_folder() -> Path:
    """The folder of the models between runs."""
    default = Path(tempfile.gettempdir()) / "pointsman-bench-llm"
    return Path(os.environ.get("POINTSMAN_BENCH_CACHE", default))


def model_folder(shape: Shape, dtype: str, home: Path | None = None) -> Path:
    """The model in Hugging Face's format, created if it is missing. `dtype`: float32 or bfloat16."""
    sizes = "-".join(str(value) for value in asdict(shape).values())
    folder = (home or cache_folder()) / f"v{FORMAT}-{sizes}-{dtype}"
    if not (folder / "config.json").exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent) as beside:
            made = Path(beside) / "model"
            _write(shape, dtype, made)
            if not folder.exists():  # another run may have been faster
                made.rename(folder)
    return folder


def tensors_of(shape: Shape) -> Iterable[tuple[str, np.ndarray]]:
    """Names as Hugging Face gives them, and FP32 values; matrices are [out, in]."""
    random, words = np.random.default_rng(SEED), Words(shape.vocabulary)

    def noise(rows: int, columns: int) -> np.ndarray:
        return NOISE * random.standard_normal((rows, columns), dtype=np.float32)

    embedding = random.standard_normal((shape.vocabulary, shape.hidden), dtype=np.float32)
    yield "model.embed_tokens.weight", embedding
    ones = np.ones(shape.hidden, np.float32)
    query, kv = shape.heads * shape.head_size, shape.kv_heads * shape.head_size
    for layer in range(shape.layers):
        prefix = f"model.layers.{layer}."
        for name, rows, columns in (
            ("self_attn.q_proj", query, shape.hidden),
            ("self_attn.k_proj", kv, shape.hidden),
            ("self_attn.v_proj", kv, shape.hidden),
            ("self_attn.o_proj", shape.hidden, query),
            ("mlp.gate_proj", shape.mlp, shape.hidden),
            ("mlp.up_proj", shape.mlp, shape.hidden),
            ("mlp.down_proj", shape.hidden, shape.mlp),
        ):
            yield f"{prefix}{name}.weight", noise(rows, columns)
        for name in ("input_layernorm", "post_attention_layernorm"):
            yield f"{prefix}{name}.weight", ones
    yield "model.norm.weight", ones
    head = np.zeros((shape.vocabulary, shape.hidden), np.float32)  # tokens that are no words are never generated
    ring = np.arange(words.first_word, words.begin)
    head[words.after[ring]] = embedding[ring] * np.float32(CONFIDENCE / shape.hidden)
    yield "lm_head.weight", head


def _write(shape: Shape, dtype: str, folder: Path) -> None:
    import torch
    from safetensors.torch import save_file

    folder.mkdir()
    kind = getattr(torch, dtype)
    tensors = {name: torch.from_numpy(values).to(kind).clone() for name, values in tensors_of(shape)}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    for name, content in files_of(shape, dtype).items():
        (folder / name).write_text(json.dumps(content, ensure_ascii=False))


def files_of(shape: Shape, dtype: str) -> dict[str, Any]:
    """The JSON files of the folder; config.json is last, and marks the folder as complete."""
    words = Words(shape.vocabulary)
    ids = {token: number for number, token in enumerate(words.tokens)}
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    special = {"special": True, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    ends = {"bos_token_id": words.begin, "eos_token_id": words.end}
    return {
        "tokenizer.json": {
            "version": "1.0",
            "added_tokens": [{"id": ids[token], "content": token, **special} for token in (BEGIN, END)],
            "normalizer": None,
            "pre_tokenizer": byte_level,
            "post_processor": None,
            "decoder": byte_level,
            "model": {
                "type": "BPE",
                "vocab": {token: number for token, number in ids.items() if token not in (BEGIN, END)},
                "merges": [merge.split(" ") for merge in words.merges],
            },
        },
        "tokenizer_config.json": {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": BEGIN,
            "eos_token": END,
            "model_max_length": shape.context_tokens,
            "clean_up_tokenization_spaces": False,
            "chat_template": "{% for message in messages %}{{ message['content'] }}{% endfor %}",
        },
        "generation_config.json": {**ends, "do_sample": False},
        "config.json": {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "vocab_size": shape.vocabulary,
            "hidden_size": shape.hidden,
            "intermediate_size": shape.mlp,
            "num_hidden_layers": shape.layers,
            "num_attention_heads": shape.heads,
            "num_key_value_heads": shape.kv_heads,
            "head_dim": shape.head_size,
            "max_position_embeddings": shape.context_tokens,
            "rms_norm_eps": 1e-5,
            "rope_theta": 10000.0,
            "hidden_act": "silu",
            "tie_word_embeddings": False,
            "torch_dtype": dtype,
            **ends,
        },
    }


def _byte_alphabet() -> dict[int, str]:
    """The visible character that stands for each byte in GPT-2's vocabulary."""
    visible = [*range(ord("!"), ord("~") + 1), *range(ord("\xa1"), ord("\xac") + 1), *range(ord("\xae"), 256)]
    hidden = [byte for byte in range(256) if byte not in visible]
    return {byte: chr(byte) for byte in visible} | {byte: chr(256 + place) for place, byte in enumerate(hidden)}
