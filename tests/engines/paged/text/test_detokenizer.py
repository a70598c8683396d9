"""Incremental detokenization."""

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engines.paged.text.detokenizer import TokenKind
from engines.paged.text.tokenizer import Tokenizer
from tests.engines.paged.text import tiny_tokenizers
from tests.engines.paged.text.tiny_tokenizers import KINDS

TOKENIZERS = {name: Tokenizer(make()) for name, make in KINDS.items()}


def results(tokenizer, ids, cuts, skip):
    """The texts emitted for a sequence's tokens, pushed in pieces cut at these places."""
    detokenizer = tokenizer.detokenizer(skip)
    places = sorted({min(cut, len(ids)) for cut in cuts} | {0, len(ids)})
    texts = ["".join(map(detokenizer.push, ids[start:end])) for start, end in pairwise(places)]
    return [*texts, detokenizer.flush()]


def test_kinds():
    """The detokenizer's kind is derived from the tokenizer's decoder."""
    kinds = {name: tokenizer.table.kind for name, tokenizer in TOKENIZERS.items()}
    assert kinds == {
        "byte_level": TokenKind.BYTES,
        "fallback": TokenKind.FALLBACK,
        "metaspace": TokenKind.TEXT,
        "word_pieces": TokenKind.TEXT,
    }


@pytest.mark.parametrize("name", TOKENIZERS)
@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_streamed_text_equals_the_whole_text(name, data):
    """For any tokens, cut at any places, the emitted text is the text of all tokens."""
    tokenizer = TOKENIZERS[name]
    ids = data.draw(st.lists(st.integers(0, tokenizer.vocab_size + 2), max_size=40))
    cuts = data.draw(st.one_of(st.just(range(41)), st.lists(st.integers(0, 40), max_size=10)))
    skip = data.draw(st.booleans())
    whole = tokenizer.backend.decode(ids, skip_special_tokens=skip)
    assert "".join(results(tokenizer, ids, cuts, skip)) == whole == tokenizer.decode(ids, skip)


@pytest.mark.parametrize("name", ["byte_level", "fallback"])
@settings(max_examples=100, deadline=None)
@given(text=st.text(max_size=30))
def test_no_character_is_emitted_in_halves(name, text):
    """Text that is emitted token by token has whole characters only."""
    tokenizer = TOKENIZERS[name]
    ids = tokenizer.encode(text, add_special_tokens=False)
    texts = results(tokenizer, ids, range(len(ids)), True)
    assert "".join(texts) == tokenizer.decode(ids)
    if "\ufffd" not in text:
        assert "\ufffd" not in "".join(texts)


@settings(max_examples=100, deadline=None)
@given(text=st.text(max_size=30))
def test_bytes_give_the_text_back(text):
    """A byte-level tokenizer's tokens decode to the original text."""
    tokenizer = TOKENIZERS["byte_level"]
    ids = tokenizer.encode(text, add_special_tokens=False)
    assert "".join(results(tokenizer, ids, range(len(ids)), False)) == text


def test_words_are_emitted_at_once():
    """Complete text is emitted with its token, including spaces before words; bytes of a character are emitted with its
    last byte."""
    tokenizer = TOKENIZERS["fallback"]
    ids = [tokenizer.backend.token_to_id(token) for token in ("▁the", "▁c", "at", "<0xC3>", "<0xA4>", "a", "<0xC3>")]
    assert results(tokenizer, ids, range(9), True) == ["the", " c", "at", "", "", "äa", "", "\ufffd"]
    tokenizer = TOKENIZERS["byte_level"]
    ids = tokenizer.encode("🙂a", add_special_tokens=False)
    texts = results(tokenizer, ids, range(len(ids)), True)
    assert [text for text in texts if text] == ["🙂", "a"]


def test_a_long_answer_costs_as_much_at_its_end():
    """The detokenizer's state does not grow with the text, nor with bytes that never form a character."""
    for name, ids in (("fallback", [262, 259]), ("metaspace", [5, 6]), ("byte_level", [200, 201])):
        detokenizer = TOKENIZERS[name].detokenizer()
        for _ in range(300):
            for token_id in ids:
                detokenizer.push(token_id)
        held = [len(value) for value in vars(detokenizer).values() if isinstance(value, list)]
        assert max(held, default=0) <= 8


def test_a_token_alone():
    """Each token has its own bytes, which log probabilities report."""
    tokenizer = TOKENIZERS["fallback"]
    ids = [tokenizer.backend.token_to_id(token) for token in ("▁the", "<0xE4>", "</s>")]
    assert [tokenizer.table.bytes_of(each) for each in ids] == [b" the", b"\xe4", b"</s>"]
    tokenizer = TOKENIZERS["byte_level"]
    for each in range(tokenizer.vocab_size):
        assert tokenizer.table.bytes_of(each).decode("utf-8", "replace") == tokenizer.backend.decode(
            [each], skip_special_tokens=False
        )
    assert tokenizer.table.bytes_of(tokenizer.vocab_size + 5) == b""


def test_added_tokens_with_any_letters():
    """An added token that is not made of byte letters is its own text."""
    tokenizer = Tokenizer(tiny_tokenizers.byte_level())
    ids = tokenizer.encode("x<tool call>y", add_special_tokens=False)
    assert "".join(results(tokenizer, ids, range(9), True)) == "x<tool call>y"
