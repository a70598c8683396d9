"""The folder of a model: weights, tokenizer and settings in the format of Hugging Face's tools, and a model card."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from demo_llm.tokenizer import CHAT_TEMPLATE, END, ROLES

if TYPE_CHECKING:
    from tokenizers import Tokenizer

    from demo_llm.network import Network

# The best sampling settings: lively, and rarely off topic.
SAMPLING = {"do_sample": True, "temperature": 0.7, "top_p": 0.95}

_CARD = """\
---
license: apache-2.0
language: en
pipeline_tag: text-generation
---
# A small storyteller

A Llama of {parameters:,} parameters ({layers} layers, {hidden} features, {heads} heads that share {kv_heads} of keys
and values, {context} tokens of context, a byte-pair vocabulary of {vocabulary}). It tells short stories about a
character that you name, knows some everyday facts, and little else. It is here so that Pointsman's demo and tests write
sentences rather than noise; it is of no use for anything that matters.

## How it was made

    python scripts/make_demo_llm.py --output DIR {command}

Nothing was downloaded. `scripts/demo_llm` writes a corpus from {plots} plots and a few lists of words, by chance from a
seed: {documents:,} stories and conversations, {megabytes:.0f} MB (digest {digest}). Training took {steps:,} steps,
{tokens:,} tokens, in {minutes:.0f} minutes on {threads} of a CPU; the mean loss of its last hundred steps was
{loss:.3f} nats a token.

| held out: drawn anew from the same plots | perplexity a token | bits a byte |
|---|---|---|
| stories | {story_perplexity:.3f} | {story_bits:.3f} |
| conversations | {chat_perplexity:.3f} | {chat_bits:.3f} |

The plots choose by chance whom and what a story is about, which no model can foresee: this is what most of the loss is.

## How to ask it

    <|user|>Tell me a story about a fox.<|assistant|>

which the chat template writes; a text without any of it (`Once upon a time`) is continued. It ends with
`<|endoftext|>`. A system message may ask for answers in a few words.

## A sample

Greedy, to "{prompt}":

{sample}

## License

Apache-2.0, as all of Pointsman: the corpus was written for it, and the weights were learned from nothing else.
"""


def write_tokenizer(folder: Path, tokenizer: Tokenizer, context: int) -> None:
    """tokenizer.json, and tokenizer_config.json with the chat template."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"), pretty=False)
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": END,
        "eos_token": END,
        "pad_token": END,
        "additional_special_tokens": list(ROLES.values()),
        "add_bos_token": False,
        "clean_up_tokenization_spaces": False,
        "model_max_length": context,
        "chat_template": CHAT_TEMPLATE,
    }
    _write_json(folder / "tokenizer_config.json", settings)


def write_model(folder: Path, model: Network, end: int) -> None:
    """model.safetensors in float16, config.json, generation_config.json. Tied embeddings are stored once."""
    import torch
    from safetensors.torch import save_file

    from demo_llm.network import NORM_EPSILON, ROPE_BASE

    folder.mkdir(parents=True, exist_ok=True)
    tensors = {name: one.detach().to(torch.float16).contiguous() for name, one in model.tensors().items()}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "model.safetensors").chmod(0o644)
    shape = model.shape
    ends = {"bos_token_id": end, "eos_token_id": end, "pad_token_id": end}
    settings = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": shape.vocabulary,
        "hidden_size": shape.hidden,
        "intermediate_size": shape.mlp,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.key_value_heads,
        "head_dim": shape.head,
        "hidden_act": "silu",
        "max_position_embeddings": shape.context,
        "rms_norm_eps": NORM_EPSILON,
        "rope_theta": ROPE_BASE,
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": True,
        "torch_dtype": "float16",
    }
    _write_json(folder / "config.json", settings | ends)
    _write_json(folder / "generation_config.json", ends | SAMPLING)


def write_card(folder: Path, facts: dict[str, Any]) -> None:
    """README.md; `facts` are the values in its text."""
    quoted = "\n".join(f"> {line}".rstrip() for line in facts["sample"].splitlines())
    (folder / "README.md").write_text(_CARD.format(**facts | {"sample": quoted}), "utf-8")


def size_of(folder: Path) -> int:
    """The total size of its files, in bytes."""
    return sum(path.stat().st_size for path in folder.iterdir() if path.is_file())


def _write_json(path: Path, values: dict[str, Any]) -> None:
    path.write_text(json.dumps(values, indent=2, ensure_ascii=False) + "\n", "utf-8")
