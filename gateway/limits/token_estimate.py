"""How many tokens a request for text may use, before an engine has counted them."""

from __future__ import annotations

import re

# English text in common vocabularies; markup and code have fewer bytes a token, the JSON around them makes up for it.
_BYTES_PER_TOKEN = 4
# A reply for which no bound is told.
_REPLY_TOKENS = 256

_BOUND = re.compile(rb'"max_(?:completion_|output_|new_)?tokens"\s{0,4}:\s{0,4}(\d{1,7})')
_LAST_OF_A_BOUND = b'_tokens"'


def prompt_tokens(num_bytes: int) -> int:
    """Those of a request's body."""
    return 1 + num_bytes // _BYTES_PER_TOKEN


def expected_tokens(body: bytes, num_bytes: int) -> int:
    """Those of a request and its reply: `body` is what has come of so many bytes."""
    return prompt_tokens(num_bytes) + _reply_tokens(body)


def _reply_tokens(body: bytes) -> int:
    """The reply's bound, the first that is told."""
    if _LAST_OF_A_BOUND in body:  # much faster than the expression, where there is none
        found = _BOUND.search(body)
        if found is not None:
            return int(found[1])
    return _REPLY_TOKENS
