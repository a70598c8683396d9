"""The quality of a model: its perplexity on held-out texts, and what it writes."""

from __future__ import annotations

import math
import re
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

_NAME = re.compile(r"[A-Z][a-z]*")
_WORD = re.compile(r"[A-Za-z]+")


@dataclass(frozen=True, slots=True)
class Loss:
    """The loss over all tokens except the first of each text."""

    nats_per_token: float
    num_tokens: int
    num_bytes: int

    @property
    def perplexity(self) -> float:
        return math.exp(self.nats_per_token)

    @property
    def bits_per_byte(self) -> float:
        return self.nats_per_token * self.num_tokens / math.log(2) / self.num_bytes


def loss_of(model: PreTrainedModel, texts: Sequence[Sequence[int]], num_bytes: int) -> Loss:
    """The loss of texts, which are given as tokens."""
    import torch

    total, counted = 0.0, 0
    with torch.no_grad():
        for text in texts:
            ids = torch.tensor([text])
            logits = model(input_ids=ids, use_cache=False).logits[0, :-1].float()
            total += float(torch.nn.functional.cross_entropy(logits, ids[0, 1:], reduction="sum"))
            counted += len(text) - 1
    return Loss(total / counted, counted, num_bytes)


def write(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, prompt: str | list[dict[str, str]], **how: Any
) -> tuple[str, bool]:
    """The text that the model writes after a text, or as the next message of a chat; and whether it stopped on its own.

    Greedy unless `how` (transformers' generate) says otherwise.
    """
    import torch

    if isinstance(prompt, str):
        ids = tokenizer(prompt, return_tensors="pt").input_ids
    else:
        ids = tokenizer.apply_chat_template(prompt, add_generation_prompt=True, return_tensors="pt", return_dict=True)[
            "input_ids"
        ]
    settings = {"max_new_tokens": 500, "do_sample": False, "temperature": None, "top_p": None} | how
    with torch.no_grad():
        made = model.generate(ids, attention_mask=torch.ones_like(ids), **settings)[0, ids.shape[1] :]
    return tokenizer.decode(made, skip_special_tokens=True), bool(made[-1] == tokenizer.eos_token_id)


def strange_words(text: str, known: Container[str]) -> list[str]:
    """The words of a text that are not known, without names: words with a capital in the middle of a sentence."""
    names = set(_names_within(text))
    return [word for word in _WORD.findall(text) if word.lower() not in known and word not in names]


def _names_within(text: str) -> Iterable[str]:
    for found in _NAME.finditer(text):
        before = text[max(0, found.start() - 2) : found.start()]
        if before and before[-1] == " " and before[0] not in '.!?"':
            yield found[0]
