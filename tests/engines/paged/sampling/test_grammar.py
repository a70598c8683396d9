"""Texts that must follow a grammar."""

import json
import re
import threading

import numpy as np
import pytest
import torch

from engines.core.errors import EngineError, ErrorCode
from engines.paged.base.transfer import Staging
from engines.paged.base.types import GrammarSpec, SamplingParams
from engines.paged.ops.reference.sampling import sample
from engines.paged.sampling import grammar
from engines.paged.sampling.batch import SampledRows, SamplingBatches
from engines.paged.sampling.grammar import GrammarCompiler
from engines.paged.sampling.vocabulary import Vocabulary
from engines.paged.text.tokenizer import Tokenizer
from tests.engines.paged.sampling.test_batch import CPU, Text
from tests.engines.paged.text import tiny_tokenizers

BYTES = Tokenizer(tiny_tokenizers.byte_level(), {"eos_token": "<|eos|>"})
PIECES = Tokenizer(tiny_tokenizers.fallback(), {"eos_token": "</s>"})
SPACES = Tokenizer(tiny_tokenizers.metaspace(), {"eos_token": "</s>"})
COMPILERS = {id(tokenizer): GrammarCompiler(tokenizer) for tokenizer in (BYTES, PIECES, SPACES)}


def matcher(spec, tokenizer=BYTES):
    return COMPILERS[id(tokenizer)].compile(spec)


def ids(text, tokenizer=BYTES):
    return tokenizer.encode(text, add_special_tokens=False)


def allowed(matcher):
    """The ids that the grammar allows next."""
    words = matcher.masks()[0].view(np.uint8)
    return set(np.unpackbits(words, bitorder="little").nonzero()[0].tolist())


def generated(spec, seed, tokenizer=BYTES, most=400, favoured="", spread=2.0):
    """(a text of random logits under a grammar, whether it was complete); `favoured` letters are likelier."""
    batches = SamplingBatches(tokenizer.vocab_size, Staging(CPU), tokenizer.eos_ids, lambda text: [])
    walk = matcher(spec, tokenizer)
    text = Text([0])
    state = batches.admit(text, SamplingParams(), seed, walk)
    logits = torch.randn(tokenizer.vocab_size, generator=torch.Generator().manual_seed(seed)) * spread
    for letter in favoured:
        logits[ids(letter, tokenizer)[-1]] += 8
    for _ in range(most):
        batch = batches.build([SampledRows(state, len(text.tokens))])
        token = sample(logits[None], batch)[0].item()
        if token in tokenizer.eos_ids:
            return tokenizer.decode(text.answer), walk._walked.is_accepting()
        walk.accept(token)
        text.answer.append(token)
        if walk.is_complete:
            return tokenizer.decode(text.answer), True
    return tokenizer.decode(text.answer), False


PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 8},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "tags": {"type": "array", "items": {"enum": ["red", "blue", "größe"]}, "maxItems": 3},
        "spouse": {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/ref"}]},
        "ok": {"type": "boolean"},
    },
    "required": ["name", "age", "tags", "spouse"],
    "additionalProperties": False,
    "$defs": {"ref": {"type": "object", "properties": {"id": {"type": "string", "pattern": "^[a-f]{2,4}$"}},
                      "required": ["id"], "additionalProperties": False}},
}  # fmt: skip


def check_person(person):
    assert {"name", "age", "tags", "spouse"} <= person.keys() <= PERSON["properties"].keys()
    assert isinstance(person["name"], str) and len(person["name"]) <= 8
    assert isinstance(person["age"], int) and 0 <= person["age"] <= 150
    assert len(person["tags"]) <= 3 and set(person["tags"]) <= {"red", "blue", "größe"}
    assert person["spouse"] is None or re.fullmatch("[a-f]{2,4}", person["spouse"]["id"])
    assert isinstance(person.get("ok", True), bool)


@pytest.mark.parametrize("tokenizer", [BYTES, PIECES, SPACES], ids=["bytes", "pieces", "spaces"])
def test_any_logits_give_json_of_the_schema(tokenizer):
    """With any logits, text under a schema is JSON that validates against it."""
    spec = GrammarSpec("json_schema", json.dumps(PERSON))
    num_whole = 0
    for seed in range(12):
        text, is_whole = generated(spec, seed, tokenizer, favoured='"}],:')
        if is_whole:
            check_person(json.loads(text))
            num_whole += 1
    assert num_whole >= 9


def test_any_logits_give_an_object():
    """json_object yields a JSON object of any form."""
    found = [generated(GrammarSpec("json_object"), seed, favoured='}"]0') for seed in range(12)]
    whole = [json.loads(text) for text, is_whole in found if is_whole]
    assert len(whole) >= 8
    assert all(isinstance(each, dict) for each in whole)
    assert any(whole)


@pytest.mark.parametrize("seed", range(10))
def test_regular_expressions(seed):
    """A regular expression matches the whole text."""
    text, is_whole = generated(GrammarSpec("regex", "(ab|c[0-9]){2,5}!"), seed)
    assert is_whole
    assert re.fullmatch("(ab|c[0-9]){2,5}!", text)


def test_choices():
    """One of several texts is generated, also if they share a prefix, and each of them can occur."""
    choices = ["yes", "yes, sir", 'no "way"', "né\n", "start: a | b"]
    spec = GrammarSpec("choice", json.dumps(choices))
    found = [generated(spec, seed, spread=0.3) for seed in range(60)]
    assert {text for text, _ in found} == set(choices)
    assert all(is_whole for _, is_whole in found)


GRAMMARS = ['start: "<" NAME ">"\nNAME: /[a-z]{1,3}/', 'root ::= "<" name ">"\nname ::= [a-z] [a-z]? [a-z]?']


@pytest.mark.parametrize("source", GRAMMARS, ids=["lark", "gbnf"])
def test_grammars(source):
    """A grammar is in llguidance's format or in llama.cpp's."""
    for seed in range(5):
        text, is_whole = generated(GrammarSpec("lark", source), seed)
        assert is_whole and re.fullmatch("<[a-z]{1,3}>", text)


def test_the_end_comes_where_the_text_may_end():
    """EOS is allowed exactly where the text would be complete; a text that nothing can follow is complete."""
    (eos,) = BYTES.eos_ids
    walk = matcher(GrammarSpec("regex", "[0-9]{1,3}"))
    assert eos not in allowed(walk)
    for digit, whole in (("4", False), ("2", False), ("0", True)):
        walk.accept(ids(digit)[0])
        assert walk._walked.is_accepting() and eos in allowed(walk)
        assert walk.is_complete == whole
    assert allowed(walk) == {eos}


def test_special_tokens_are_no_text():
    """A grammar's text contains no special token, even if its letters are allowed; an added token is text."""
    may = allowed(matcher(GrammarSpec("regex", ".*")))
    assert not may & (BYTES.special_ids - BYTES.eos_ids)
    assert BYTES.backend.token_to_id("<think>") in may


def test_drafts():
    """The mask after each draft equals the matcher's mask there, and the matcher itself does not move."""
    walk = matcher(GrammarSpec("regex", "ab*c"))
    a, b, c, x = (ids(letter)[0] for letter in "abcx")
    assert walk.num_valid([a, b, x]) == 2
    assert walk.num_valid([x]) == walk.num_valid([]) == 0
    masks = walk.masks([a, b, x, b])
    assert walk.num_valid([a]) == 1
    for drafts, mask in zip(([], [a], [a, b]), masks, strict=False):
        there = matcher(GrammarSpec("regex", "ab*c"))
        for token in drafts:
            there.accept(token)
        assert (mask == there.masks()[0]).all()
    assert (masks[3:] == -1).all()
    (eos,) = BYTES.eos_ids
    masks = walk.masks([a, c, eos, a])
    assert np.unpackbits(masks[2].view(np.uint8), bitorder="little").nonzero()[0].tolist() == [eos]
    assert walk.num_valid([a]) == 1


def test_drafts_that_the_tokenizer_does_not_have():
    """A model's logits may be wider than its vocabulary: a draft beyond it is invalid and harmless."""
    walk = matcher(GrammarSpec("regex", "ab+"))
    beyond = BYTES.vocab_size
    assert walk.num_valid([*ids("a"), beyond, *ids("b")]) == 1
    assert walk.masks([beyond]).shape[0] == 2
    walk.accept(*ids("a"))
    assert allowed(walk) >= set(ids("b"))


def test_forks_go_their_own_ways():
    """Choices of one request share a prefix and then diverge."""
    one = matcher(GrammarSpec("regex", "a(b|c)"))
    one.accept(ids("a")[0])
    two = one.fork()
    one.accept(ids("b")[0])
    assert one.is_complete and not two.is_complete
    two.accept(ids("c")[0])
    assert two.is_complete


def test_a_token_that_cannot_come():
    """A token that the grammar does not allow is an error, and the matcher still yields a mask."""
    walk = matcher(GrammarSpec("regex", "ab"))
    with pytest.raises(EngineError, match="cannot follow its grammar"):
        walk.accept(ids("x")[0])
    assert walk.masks([1, 2]).shape[0] == 3
    assert not walk.is_complete


WRONG = [
    (GrammarSpec("json_schema", '{"type": "strange"}'), "json_schema: Invalid type: strange"),
    (GrammarSpec("json_schema", '{"not": {}}'), r'json_schema: Unimplemented keys: \["not"\]'),
    (GrammarSpec("json_schema", '{"$ref": "#/nope"}'), "json_schema: .*/nope"),
    (GrammarSpec("json_schema", '{"type": "integer", "minimum": 5, "maximum": 3}'), "Unsatisfiable schema"),
    (GrammarSpec("json_schema", "{"), "json_schema: "),
    (GrammarSpec("json_schema", '{"a":' * 5000 + "1" + "}" * 5000), "json_schema: "),
    (GrammarSpec("regex", "(["), "(?s)regex: .*unclosed"),
    (GrammarSpec("regex", "(?=a)b"), "(?s)regex: .*look-around"),
    (GrammarSpec("regex", "a" * 300_000), "regex: it has 300000 characters, and may have 262144"),
    (GrammarSpec("choice", "[]"), "choice: it must be a list of one text or more"),
    (GrammarSpec("choice", json.dumps(["a"] * 20_000)), "choice: 20000 texts are more than 10000"),
    (GrammarSpec("lark", "start: foo"), 'lark: .*unknown name: "foo"'),
    (GrammarSpec("lark", 'root ::= "a'), "lark: "),
    (GrammarSpec("xml", "<a>"), "grammar: no such kind as 'xml'; known are json_schema"),
]


@pytest.mark.parametrize("spec, message", WRONG)
def test_wrong_grammars(spec, message):
    """An invalid grammar is refused with a short description of the problem."""
    with pytest.raises(EngineError, match=message) as raised:
        matcher(spec)
    assert raised.value.code is ErrorCode.INVALID_ARG
    assert len(str(raised.value)) < 700


def test_whitespace_has_an_end():
    """Whitespace between JSON tokens is allowed but bounded."""
    (newline,) = ids("\n")
    walk = matcher(GrammarSpec("json_object"))
    for token in ids("{"):
        walk.accept(token)
    count = 0
    while newline in allowed(walk) and count < 1000:
        walk.accept(newline)
        count += 1
    assert 8 <= count <= 64


def test_compiled_once(monkeypatch):
    """A grammar is compiled once for all requests that use it; the cache is bounded."""
    compiled = []
    original = grammar._compiled
    monkeypatch.setattr(grammar, "_compiled", lambda spec, words: compiled.append(spec) or original(spec, words))
    monkeypatch.setattr(grammar, "MAX_CACHED", 2)
    compiler = GrammarCompiler(BYTES)
    specs = [GrammarSpec("regex", text) for text in ("a", "b", "c")]
    for spec in (specs[0], specs[0], specs[1], specs[0], specs[2], specs[0], specs[1]):
        walk = compiler.compile(spec)
        walk.accept(ids(spec.text)[0])
    assert compiled == [*specs, specs[1]]
    assert len(compiler._cache) == 2


FORCED = [
    (BYTES, "the cat", b"the cat"),
    (BYTES, "a<|eos|>b<think>", b"a<|eos|>b<think>"),
    (BYTES, "ä你🙂", "ä你🙂".encode()),
    (BYTES, b"\xe4\xbd", b"\xe4\xbd"),
    (BYTES, "", b""),
    (PIECES, "the cat", b"the cat"),
    (PIECES, " the", b" the"),
    (PIECES, "a</s>b🙂", "a</s>b🙂".encode()),
    (PIECES, b"\xe4\xbd", b"\xe4\xbd"),
    (SPACES, "the cat", b"the cat"),
    (SPACES, "[1]", b"[1]"),
    (SPACES, "cat€", b"cat"),  # which has no token
]


@pytest.mark.parametrize("tokenizer, text, results", FORCED)
def test_the_tokens_of_a_text_that_is_forced(tokenizer, text, results):
    """If only one text is possible, its tokens spell exactly its bytes, and none of them is special."""
    tokens = Vocabulary(tokenizer, min(tokenizer.eos_ids))(text)
    assert b"".join(tokenizer.table.bytes_of(each) for each in tokens) == results
    assert tokenizer.special_ids.isdisjoint(tokens)


def test_a_forced_text_is_written_as_its_tokenizer_would():
    """A forced text has the tokens that the tokenizer itself would produce."""
    words = Vocabulary(BYTES, min(BYTES.eos_ids))
    assert words('JSON: {"name"') == ids('JSON: {"name"')


def test_many_threads():
    """Threads compile grammars while others are in use."""
    spec = GrammarSpec("json_schema", json.dumps(PERSON))
    compiler = GrammarCompiler(BYTES)
    failures = []

    def work(number):
        try:
            for turn in range(10):
                walk = compiler.compile(spec if turn % 2 else GrammarSpec("regex", f"a{{{number},{turn + 20}}}b"))
                for _ in range(20):
                    walk.accept(min(allowed(walk)))
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_a_model_without_an_end():
    """A tokenizer without EOS supports grammars too; its texts end where no token is allowed."""
    compiler = GrammarCompiler(Tokenizer(tiny_tokenizers.byte_level()))
    walk = compiler.compile(GrammarSpec("regex", "ab"))
    walk.accept(ids("a")[0])
    assert {token for token in allowed(walk) if token < BYTES.vocab_size} == set(ids("b"))
    walk.accept(ids("b")[0])
    assert walk.is_complete


def test_tokenizers_that_cannot():
    """If a text is not the concatenation of its tokens, grammars are not supported, and the request fails."""
    compiler = GrammarCompiler(Tokenizer(tiny_tokenizers.word_pieces()))
    with pytest.raises(EngineError, match="no grammar can be followed") as raised:
        compiler.compile(GrammarSpec("regex", "a"))
    assert raised.value.code is ErrorCode.UNSUPPORTED
