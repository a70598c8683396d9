"""Stop strings."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engines.paged.base.types import SamplingParams
from engines.paged.text.stream import StopTexts, TextStream
from engines.paged.text.tokenizer import Tokenizer
from tests.engines.paged.text import tiny_tokenizers


def run(stops, pieces, include=False):
    """(texts emitted piece by piece, the stop string)."""
    looking, texts = StopTexts(stops, include), []
    for piece in pieces:
        text, stop = looking.push(piece)
        texts.append(text)
        if stop is not None:
            return texts, stop
    return [*texts, looking.pass_by("")], None


CASES = [
    # stop strings, pieces, texts emitted piece by piece, the stop string found
    (["STOP"], ["ab", "c"], ["ab", "c", ""], None),
    (["STOP"], ["abSTOPcd"], ["ab"], "STOP"),
    (["STOP"], ["abS", "TO", "Px"], ["ab", "", ""], "STOP"),
    (["STOP"], ["abS", "T", "a"], ["ab", "", "STa", ""], None),
    (["STOP"], ["abST"], ["ab", "ST"], None),
    (["SSTOP"], ["SS", "S", "TOP"], ["", "S", ""], "SSTOP"),
    (["\n\n"], ["a\n", "b\n", "\n"], ["a", "\nb", ""], "\n\n"),
    # the stop string that ends first, and the longest of those that end there
    (["abcd", "bc"], ["xabc", "d"], ["xa"], "bc"),
    (["c", "bc", "abc"], ["xabcy"], ["x"], "abc"),
    (["END", "</s>"], ["a</s>bEND"], ["a"], "</s>"),
]


@pytest.mark.parametrize("stops, pieces, texts, stop", CASES)
def test_stop_texts(stops, pieces, texts, stop):
    """Text is emitted as soon as no stop string can begin in it, and none of it after a stop string."""
    assert run(stops, pieces) == (texts, stop)


def test_the_stop_string_may_be_included():
    """A request can include the stop string in its text."""
    assert run(["END"], ["aE", "NDb"], include=True) == (["a", "END"], "END")


@given(
    text=st.text("ab\n", max_size=30),
    stops=st.lists(st.text("ab\n", min_size=1, max_size=4), min_size=1, max_size=4),
    cuts=st.lists(st.integers(0, 30)),
    include=st.booleans(),
)
def test_cuts_do_not_matter(text, stops, cuts, include):
    """The emitted text and its end do not depend on how the text is cut."""
    places = sorted({0, len(text), *(min(cut, len(text)) for cut in cuts)})
    texts, stop = run(stops, [text[a:b] for a, b in pairwise(places)], include)
    ends = [(end, -len(each), each) for end in range(len(text) + 1) for each in stops if text[:end].endswith(each)]
    if not ends:
        assert ("".join(texts), stop) == (text, None)
    else:
        end, length, found = min(ends)
        assert ("".join(texts), stop) == (text[: end if include else end + length], found)


def test_nothing_is_held_that_cannot_stop():
    """Text is held back only if a stop string begins in it."""
    looking = StopTexts(["hello", "help"])
    assert [looking.push(letter)[0] for letter in "hhelx hel"] == ["", "h", "", "", "helx", " ", "", "", ""]
    assert looking.pass_by("") == "hel"


def stream(**params):
    return TextStream(TOKENIZER, SamplingParams(**params))


TOKENIZER = Tokenizer(tiny_tokenizers.byte_level())


def ids(text):
    return TOKENIZER.encode(text, add_special_tokens=False)


def push(choice, tokens, **options):
    """The text that tokens add up to the first stop string, and that stop string."""
    texts = []
    for token in tokens:
        text, stop = choice.push(token, **options)
        texts.append(text)
        if stop is not None:
            return "".join(texts), stop
    return "".join(texts), None


def test_a_stream_of_tokens():
    """A choice's text ends at its stop string."""
    assert push(stream(stop=("e.",)), ids("one. two")) == ("on", "e.")


def test_a_stream_without_stops():
    """Without stop strings tokens are emitted at once; an unfinished character comes at the end."""
    choice = stream()
    assert push(choice, ids("a🙂")[:-1]) == ("a", None)
    assert choice.flush() == ("\ufffd", None)


def test_a_stream_before_its_min_tokens():
    """Stop strings within the first min_tokens tokens do not end the text; later ones do."""
    choice = stream(stop=("b",))
    assert push(choice, ids("abab"), may_stop=False) == ("abab", None)
    assert push(choice, ids("cab")) == ("ca", "b")


def test_the_end_emits_what_was_held_back():
    """The beginning of an incomplete stop string is emitted at the end."""
    choice = stream(stop=("END",))
    assert push(choice, ids("aEN")) == ("a", None)
    assert choice.flush() == ("EN", None)


def test_bytes_at_the_end_may_complete_a_stop_text():
    """A stop string can match bytes that only the end of the text shows to be no character."""
    choice = stream(stop=("a\ufffd",))
    assert push(choice, ids("a🙂")[:-1]) == ("", None)
    assert choice.flush() == ("", "a\ufffd")


def test_special_tokens_are_visible_on_demand():
    """A special token has no text unless the request shows special tokens."""
    tokens = [*ids("a"), TOKENIZER.backend.token_to_id("<|eos|>"), *ids("b")]
    assert push(stream(), tokens) == ("ab", None)
    assert push(stream(skip_special_tokens=False), tokens) == ("a<|eos|>b", None)
