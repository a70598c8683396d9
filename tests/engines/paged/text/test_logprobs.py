"""Log probabilities as clients are told them."""

import json
import math

from engines.paged.api_types import TokenLogprob
from engines.paged.text.logprobs import told_logprob
from engines.paged.text.tokenizer import Tokenizer
from tests.engines.paged.text import tiny_tokenizers

TOKENIZER = Tokenizer(tiny_tokenizers.byte_level())


def test_a_token_and_the_likeliest_at_its_place():
    """Each token is told with its text, its bytes and its log probability; half a character by its bytes."""
    a, space, half = (TOKENIZER.backend.token_to_id(token) for token in ("a", "Ġ", "Ã"))
    told = told_logprob(TOKENIZER, TokenLogprob(a, -0.5, ((half, -0.25), (a, -0.5), (space, -math.inf))))
    assert told == {
        "token": "a",
        "logprob": -0.5,
        "bytes": [97],
        "top_logprobs": [
            {"token": "\ufffd", "logprob": -0.25, "bytes": [0xC3]},
            {"token": "a", "logprob": -0.5, "bytes": [97]},
            {"token": " ", "logprob": -9999.0, "bytes": [32]},
        ],
    }
    assert json.loads(json.dumps(told, allow_nan=False)) == told


def test_a_special_token():
    """A special token that was drawn is told by its name."""
    eos = TOKENIZER.backend.token_to_id("<|eos|>")
    assert told_logprob(TOKENIZER, TokenLogprob(eos, -1.0))["token"] == "<|eos|>"
