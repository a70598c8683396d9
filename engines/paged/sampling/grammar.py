"""Constrains texts to a grammar, by llguidance: which tokens may come next, and whether the text is complete.

One `GrammarCompiler` a model, one `Matcher` a sequence.
Source: llguidance 1.9 (`LLMatcher`, `LLParserLimits`; docs/json_schema.md for the supported part of JSON schema).
"""

from __future__ import annotations

import json
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from itertools import takewhile
from typing import Any

import numpy as np

from engines.core.errors import invalid
from engines.paged.base.types import GrammarSpec
from engines.paged.sampling.vocabulary import read_vocabulary
from engines.paged.text.tokenizer import Tokenizer

# A grammar compiles in about a millisecond per kilobyte, while its client waits.
MAX_GRAMMAR_CHARS = 256 * 1024
MAX_CHOICES = 10_000
# Compiled grammars kept, most recently used first to stay: most services have a handful.
MAX_CACHED = 64
# Bounds white space between tokens of JSON: models that are unsure of a value fill their answer with newlines. A
# schema's own "x-guidance" takes precedence.
_JSON_OPTIONS: Any = {"whitespace_pattern": r"[\x20\x0A\x0D\x09]{1,64}"}
# Up to 2 KB each; llguidance's own limit would take half a gigabyte.
_MAX_LEXER_STATES = 50_000
_MAX_REASON_CHARS = 500


class Matcher:
    """The position of one sequence in its grammar. Used by one thread at a time."""

    def __init__(self, walked: Any, eos_ids: frozenset[int], size: int) -> None:
        """`size` of the vocabulary: an id beyond it would corrupt the matcher."""
        self._walked = walked
        self._eos_ids = eos_ids
        self._size = size

    @property
    def is_complete(self) -> bool:
        """Whether the text is complete and nothing can follow."""
        return bool(self._walked.is_stopped()) and not self._walked.is_error()

    def masks(self, drafts: Sequence[int] = ()) -> Any:
        """Which tokens may come, and which after each draft: a numpy array [1 + drafts, words] int32, bit id % 32 of
        word id // 32. EOS is allowed where the text may end. The row behind an invalid draft allows all. Never raises:
        where the grammar has become too complex, `accept` does."""
        masks = [self._mask()]
        num_consumed = 0
        for draft in drafts[: self.num_valid(drafts)]:
            if draft in self._eos_ids:
                break
            self._walked.consume_token(draft)
            num_consumed += 1
            masks.append(self._mask())
        if num_consumed:
            self._walked.rollback(num_consumed)
        free = np.full_like(masks[0], -1)
        return np.stack([*masks, *[free] * (len(drafts) - num_consumed)])

    def accept(self, token_id: int) -> None:
        """Advance by one token.

        Raises: EngineError where it is not allowed, or the grammar is too complex to go on.
        """
        if not self._walked.consume_token(token_id):
            raise invalid(f"the text cannot follow its grammar: {_short(self._walked.get_error())}")

    def num_valid(self, token_ids: Sequence[int]) -> int:
        """How many of these tokens, from the first on, may come next; ids that the tokenizer does not have may not,
        though a model's logits may include them."""
        cached = list(takewhile(lambda token_id: token_id < self._size, token_ids))
        return int(self._walked.validate_tokens(cached)) if cached else 0

    def fork(self) -> Matcher:
        """A copy at the same position."""
        return Matcher(self._walked.deep_copy(), self._eos_ids, self._size)

    def _mask(self) -> Any:
        return np.frombuffer(self._walked.compute_bitmask(), np.int32)


class GrammarCompiler:
    """Of one tokenizer. Any thread may call it; a compiled grammar is cached and copied."""

    def __init__(self, tokenizer: Tokenizer, eos_ids: frozenset[int] | None = None) -> None:
        """`eos_ids`: None for the tokenizer's own."""
        self._tokenizer = tokenizer
        self._eos_ids = tokenizer.eos_ids if eos_ids is None else eos_ids
        self._vocabulary: Any = None
        self._cache: OrderedDict[GrammarSpec, Matcher] = OrderedDict()
        self._lock = threading.Lock()

    def prepare(self) -> None:
        """Read the vocabulary now, which takes about a second for a large one, instead of with the first grammar."""
        with self._lock:
            if self._vocabulary is None:
                self._vocabulary = read_vocabulary(self._tokenizer, self._eos_ids)

    def compile(self, spec: GrammarSpec) -> Matcher:
        """A matcher at the beginning of a text.

        Raises: EngineError that names the problem of the grammar, or says that this model supports none.
        """
        with self._lock:
            if (cached := self._cache.get(spec)) is not None:
                self._cache.move_to_end(spec)
                return cached.fork()
        self.prepare()
        matcher = Matcher(_compiled(spec, self._vocabulary), self._eos_ids, self._vocabulary.vocab_size)
        with self._lock:
            self._cache[spec] = matcher
            while len(self._cache) > MAX_CACHED:
                self._cache.popitem(last=False)
            return matcher.fork()


def _compiled(spec: GrammarSpec, vocabulary: Any) -> Any:
    from llguidance import LLMatcher, LLParserLimits

    if len(spec.text) > MAX_GRAMMAR_CHARS:
        raise invalid(f"{spec.kind}: it has {len(spec.text)} characters, and may have {MAX_GRAMMAR_CHARS}")
    try:
        source = _SOURCES[spec.kind](LLMatcher, spec.text)
    except KeyError:
        raise invalid(f"grammar: no such kind as {spec.kind!r}; known are {', '.join(_SOURCES)}") from None
    except (ValueError, RecursionError) as error:
        raise invalid(f"{spec.kind}: {_short(str(error))}") from error
    limits = LLParserLimits(max_lexer_states=_MAX_LEXER_STATES, verbose_errors=False)
    matcher = LLMatcher(vocabulary, source, log_level=0, limits=limits)
    if matcher.is_error():
        raise invalid(f"{spec.kind}: {_short(matcher.get_error())}")
    return matcher


def _choice(matcher: Any, text: str) -> str:
    """A grammar of literals."""
    texts = json.loads(text)
    if not isinstance(texts, list) or not texts or not all(isinstance(each, str) for each in texts):
        raise ValueError("it must be a list of one text or more")
    if len(texts) > MAX_CHOICES:
        raise ValueError(f"{len(texts)} texts are more than {MAX_CHOICES}")
    return _lark(matcher, "start: " + " | ".join(json.dumps(each) for each in texts))


def _lark(matcher: Any, text: str) -> str:
    """llguidance's grammar; llama.cpp's GBNF, which has ::= for rules, is translated."""
    from llguidance.gbnf_to_lark import GbnfToLarkError, gbnf_to_lark

    if "::=" in text:
        try:
            text = gbnf_to_lark(text)
        except GbnfToLarkError as error:
            raise ValueError(str(error)) from error
    return str(matcher.grammar_from_lark(text))


# By kind, with llguidance's LLMatcher.
_SOURCES: dict[str, Callable[[Any, str], str]] = {
    "json_schema": lambda matcher, text: matcher.grammar_from_json_schema(text, defaults=_JSON_OPTIONS),
    "json_object": lambda matcher, _: matcher.grammar_from_json_schema('{"type": "object"}', defaults=_JSON_OPTIONS),
    "regex": lambda matcher, text: matcher.grammar_from_regex(text),
    "choice": _choice,
    "lark": _lark,
}


def _short(reason: str) -> str:
    text = reason.strip()
    return text if len(text) <= _MAX_REASON_CHARS else text[:_MAX_REASON_CHARS] + "..."
