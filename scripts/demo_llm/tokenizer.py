"""The tokenizer: byte pairs learned from the corpus, the tokens that mark roles, the chat template."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING

from demo_llm.corpus import Document

if TYPE_CHECKING:
    from tokenizers import Tokenizer

VOCABULARY_SIZE = 2048
END = "<|endoftext|>"
ROLES = {"user": "<|user|>", "assistant": "<|assistant|>", "system": "<|system|>"}
SPECIAL_TOKENS = (END, *ROLES.values())

# A message follows the token of its role at once; an answer ends with the token that ends every text. OpenAI's
# clients may send a content in parts, and call the system the developer.
CHAT_TEMPLATE = """\
{%- for message in messages %}
    {%- set role = 'system' if message['role'] == 'developer' else message['role'] %}
    {%- if role not in ['system', 'user', 'assistant'] %}
        {{- raise_exception('This model knows the roles system, user and assistant, not ' + role + '.') }}
    {%- endif %}
    {{- '<|' + role + '|>' }}
    {%- if message['content'] is string %}
        {{- message['content'] | trim }}
    {%- else %}
        {%- for part in message['content'] or [] %}
            {%- if part['type'] == 'text' %}{{- part['text'] | trim }}{%- endif %}
        {%- endfor %}
    {%- endif %}
    {%- if role == 'assistant' %}{{- '<|endoftext|>' }}{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|assistant|>' }}{%- endif %}
"""

_WORD = re.compile(r"[a-z]+")


def train_tokenizer(some: Iterable[Document], size: int = VOCABULARY_SIZE) -> Tokenizer:
    """Byte pairs of the documents, cut into words as GPT-2 cuts them; they can represent every text."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    made.train_from_iterator((one.plain for one in some), trainer)
    return made


def encode(tokenizer: Tokenizer, one: Document, *, begins: bool = False) -> list[int]:
    """A document as the model reads it, and as the chat template writes it.

    `begins` puts the end token before a story: a text that begins with it has no prompt.
    """
    end = tokenizer.token_to_id(END)
    if not one.chat:
        return [*([end] if begins else []), *tokenizer.encode(one.text).ids, end]
    ids: list[int] = []
    for message in one.chat:
        ids += [tokenizer.token_to_id(ROLES[message.role]), *tokenizer.encode(message.content).ids]
        if message.role == "assistant":
            ids.append(end)
    return ids


def words_of(some: Iterable[Document]) -> Counter[str]:
    """The words of the documents in lower case, and their counts."""
    found: Counter[str] = Counter()
    for one in some:
        found.update(_WORD.findall(one.plain.lower()))
    return found
