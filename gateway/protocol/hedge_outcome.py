"""What becomes of a hedge: the second attempt of a request whose first one is slow."""

from enum import Enum


class HedgeOutcome(Enum):
    WON = "won"  # it answers in place of the first attempt
    LOST = "lost"  # it is cancelled: the first attempt has answered, or the request has ended
    FAILED = "failed"  # it has failed, or was answered with an error; the first attempt goes on


# Replies below 500 that are no answer to the request: another endpoint may answer it.
_NO_ANSWERS = frozenset({404, 408, 429, 499})


def is_answer(status: int) -> bool:
    """Whether a reply of this HTTP status, or that of its gRPC status, answers the request, if only to refuse it."""
    return status < 500 and status not in _NO_ANSWERS
