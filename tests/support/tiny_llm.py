"""A generated language model of 2 MB that real engines load and that counts (tests/support/counting.py).

    python -m tests.support.tiny_llm DIRECTORY    # to inspect it

It is a Llama of two layers with seeded random weights except for two matrices, which map each token's embedding to the
logit of its successor. Attention and MLP add noise too small to change that, so that engines do all of their work and
the text is still predictable at any temperature up to 1. The tokenizer is GPT-2's byte-level BPE with one token per
word.
"""

import json
import math
import sys
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save_file

from tests.support.counting import ENDLESS, FIRST, FIRST_ENDLESS, NEXT, WORDS

NAME = "tests/tiny-counter"  # in the form of Hugging Face's repository names
HIDDEN = 128
LAYERS = 2
HEADS = 4
MLP = 256
CONTEXT_TOKENS = 4096
SEED = 5
REVISION = "0" * 40  # the commit that the cache names
# Logit of the right next token; the others are near 0.
CONFIDENCE = 60.0
NOISE = 0.02

BEGIN, END, SYSTEM, USER, ASSISTANT, COUNT_FOR_EVER = (
    "<|begin|>",
    "<|end|>",
    "<|system|>",
    "<|user|>",
    "<|assistant|>",
    "<|endless|>",
)
SPECIAL = [BEGIN, END, SYSTEM, USER, ASSISTANT, COUNT_FOR_EVER]

# To continue a last message of the assistant, engines cut off the template's text after it.
CHAT_TEMPLATE = (
    "{{ '" + BEGIN + "' }}"
    "{% for message in messages %}"
    "{{ '<|' + message['role'] + '|>' + message['content'] + '" + END + "' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}"
    "{{ '" + ASSISTANT + "' }}"
    "{% if '" + ENDLESS + "' in messages[-1]['content'] %}{{ '" + COUNT_FOR_EVER + "' }}{% endif %}"
    "{% endif %}"
)


def byte_alphabet() -> dict[int, str]:
    """GPT-2's visible character for each byte."""
    visible = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    hidden = [byte for byte in range(256) if byte not in visible]
    return {byte: chr(byte) for byte in visible} | {byte: chr(256 + place) for place, byte in enumerate(hidden)}


def vocabulary() -> tuple[list[str], list[str]]:
    """All tokens in the order of their ids, and the merges in the order of their ranks.

    A word is merged byte by byte from its first byte, which is a space except in the two words that begin a text. No
    other merge interferes, as long as the merges of words with a space come first.
    """
    space = byte_alphabet()[ord(" ")]
    tokens = [*byte_alphabet().values()]
    merges: dict[str, None] = {}
    known = set(tokens)
    for word in [*(space + word for word in WORDS), FIRST_ENDLESS, FIRST]:
        for cut in range(1, len(word)):
            merges[f"{word[:cut]} {word[cut]}"] = None
            if word[: cut + 1] not in known:
                known.add(word[: cut + 1])
                tokens.append(word[: cut + 1])
    return [*tokens, *SPECIAL], list(merges)


def successors(tokens: list[str]) -> list[int]:
    """The id of the token that follows each token."""
    ids = {token: number for number, token in enumerate(tokens)}
    space = byte_alphabet()[ord(" ")]
    after = [ids[space + FIRST]] * len(tokens)
    for word, following in NEXT.items():
        for spelled in (word, space + word):
            if spelled in ids:
                after[ids[spelled]] = ids[END if following is None else space + following]
    for special in SPECIAL:
        after[ids[special]] = ids[FIRST]
    after[ids[COUNT_FOR_EVER]] = ids[FIRST_ENDLESS]
    return after


def weights(after: list[int]) -> dict[str, NDArray[np.float32]]:
    """The tensors, by Hugging Face's names; matrices are [out, in]."""
    random = np.random.default_rng(SEED)

    def noise(rows: int, columns: int) -> NDArray[np.float32]:
        return (NOISE * random.standard_normal((rows, columns))).astype(np.float32)

    followers = sorted(set(after))
    basis = np.linalg.qr(random.standard_normal((HIDDEN, HIDDEN)))[0].astype(np.float32)
    embedding, head = noise(len(after), HIDDEN), noise(len(after), HIDDEN)
    embedding += basis[[followers.index(token) for token in after]] * math.sqrt(HIDDEN)
    head[followers] += basis[: len(followers)] * (CONFIDENCE / math.sqrt(HIDDEN))
    tensors = {
        "model.embed_tokens.weight": embedding,
        "model.norm.weight": np.ones(HIDDEN, np.float32),
        "lm_head.weight": head,
    }
    for layer in range(LAYERS):
        prefix = f"model.layers.{layer}."
        for name in ("q_proj", "k_proj", "v_proj", "o_proj"):
            tensors[f"{prefix}self_attn.{name}.weight"] = noise(HIDDEN, HIDDEN)
        for name in ("gate_proj", "up_proj"):
            tensors[f"{prefix}mlp.{name}.weight"] = noise(MLP, HIDDEN)
        tensors[f"{prefix}mlp.down_proj.weight"] = noise(HIDDEN, MLP)
        for name in ("input_layernorm", "post_attention_layernorm"):
            tensors[f"{prefix}{name}.weight"] = np.ones(HIDDEN, np.float32)
    return tensors


def write_hugging_face(directory: Path) -> Path:
    """Write the model in Hugging Face's format."""
    directory.mkdir(parents=True, exist_ok=True)
    tokens, merges = vocabulary()
    ids = {token: number for number, token in enumerate(tokens)}
    tensors = weights(successors(tokens))
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})
    files: dict[str, Any] = {
        "model.safetensors.index.json": {"metadata": {}, "weight_map": dict.fromkeys(tensors, "model.safetensors")},
        "config.json": {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "vocab_size": len(tokens),
            "hidden_size": HIDDEN,
            "intermediate_size": MLP,
            "num_hidden_layers": LAYERS,
            "num_attention_heads": HEADS,
            "num_key_value_heads": HEADS,
            "max_position_embeddings": CONTEXT_TOKENS,
            "rms_norm_eps": 1e-5,
            "rope_theta": 10000.0,
            "hidden_act": "silu",
            "tie_word_embeddings": False,
            "bos_token_id": ids[BEGIN],
            "eos_token_id": ids[END],
            "torch_dtype": "float32",
        },
        "generation_config.json": {"bos_token_id": ids[BEGIN], "eos_token_id": ids[END], "do_sample": False},
        "tokenizer.json": {
            "version": "1.0",
            "added_tokens": [
                {
                    "id": ids[token],
                    "content": token,
                    "special": True,
                    "single_word": False,
                    "lstrip": False,
                    "rstrip": False,
                    "normalized": False,
                }
                for token in SPECIAL
            ],
            "normalizer": None,
            "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
            "post_processor": None,
            "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
            "model": {
                "type": "BPE",
                "vocab": {token: ids[token] for token in tokens if token not in SPECIAL},
                "merges": [merge.split(" ") for merge in merges],
            },
        },
        "tokenizer_config.json": {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": BEGIN,
            "eos_token": END,
            "model_max_length": CONTEXT_TOKENS,
            "clean_up_tokenization_spaces": False,
            "chat_template": CHAT_TEMPLATE,
        },
    }
    for name, content in files.items():
        (directory / name).write_text(json.dumps(content, indent=1))
    return directory


def write_cache(home: Path) -> Path:
    """Write the model into Hugging Face's cache at `home`, as if downloaded, so that engines find it by name. Returns
    the directory of its files."""
    repository = home / "hub" / f"models--{NAME.replace('/', '--')}"
    directory = write_hugging_face(repository / "snapshots" / REVISION)
    (repository / "refs").mkdir(parents=True, exist_ok=True)
    (repository / "refs" / "main").write_text(REVISION)
    return directory


def write_gguf(path: Path) -> Path:
    """Write the model in llama.cpp's format."""
    from gguf import GGUFWriter, TokenType

    tokens, merges = vocabulary()
    ids = {token: number for number, token in enumerate(tokens)}
    writer = GGUFWriter(path, "llama")
    writer.add_name(NAME)
    writer.add_context_length(CONTEXT_TOKENS)
    writer.add_embedding_length(HIDDEN)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(MLP)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(HEADS)
    writer.add_rope_dimension_count(HIDDEN // HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types([TokenType.CONTROL if token in SPECIAL else TokenType.NORMAL for token in tokens])
    writer.add_token_merges(merges)
    writer.add_bos_token_id(ids[BEGIN])
    writer.add_eos_token_id(ids[END])
    writer.add_add_bos_token(False)
    writer.add_chat_template(CHAT_TEMPLATE)
    for name, tensor in weights(successors(tokens)).items():
        writer.add_tensor(gguf_name(name), tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


GGUF_NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}


def gguf_name(name: str) -> str:
    """GGUF's name of a Hugging Face tensor."""
    stem = name.removesuffix(".weight")
    if not stem.startswith("model.layers."):
        return GGUF_NAMES[stem] + ".weight"
    _, _, layer, part = stem.split(".", 3)
    return f"blk.{layer}.{GGUF_NAMES[part]}.weight"


if __name__ == "__main__":
    print(write_cache(Path(sys.argv[1])))
    print(write_gguf(Path(sys.argv[1]) / "tiny-counter.gguf"))
