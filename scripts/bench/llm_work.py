"""The requests of a round, when each one is sent, and the time of every token.

Everything is seeded by case and round, so that all engines get the same tokens in a round, and no engine gets a prompt
twice whose prefix it could have cached, except where a case measures that.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from bench.llm_model import Words
from bench.processes import BenchError

# Prompts of 16 to 512 tokens and answers of 32 to 128, mixed so that their lengths are not correlated.
MIXED_PROMPTS = (16, 320, 64, 192, 512, 128, 32, 448, 256, 96, 160, 384, 64, 256, 128, 192)
MIXED_ANSWERS = (96, 64, 128, 32, 48, 112, 80, 96, 64, 128, 64, 32, 48, 112, 96, 80)

ALONE_PROMPT, ALONE_ANSWER = 128, 128

PREFIX_TOKENS, QUESTION_TOKENS, PREFIX_ANSWER = 1000, 16, 4
NUM_HITS = 3

NUM_OTHERS, OTHERS_PROMPT, OTHERS_ANSWER = 8, 64, 320
TOKENS_BEFORE_ARRIVAL = 32
LONG_PROMPT, LONG_ANSWER = 4000, 8

# A warm-up has the same prompts, and answers of this many tokens.
WARM_TOKENS = 6


@dataclass(frozen=True, slots=True)
class Request:
    """One prompt, sent once all before it have `after_tokens` tokens; None: once they have ended."""

    prompt: tuple[int, ...]
    max_tokens: int
    after_tokens: int | None = 0


@dataclass(slots=True)
class Answer:
    """The answer to one request: ids (or, over HTTP, text), and seconds of one clock for each token."""

    submitted: float
    times: list[float]
    ids: list[int] | None = None
    text: str | None = None
    prompt_tokens: int | None = None  # as the engine counts them; None if it does not report them

    @property
    def first_token_seconds(self) -> float:
        return self.times[0] - self.submitted

    @property
    def gaps(self) -> list[float]:
        """Seconds between one token and the next."""
        return [later - earlier for earlier, later in zip(self.times, self.times[1:], strict=False)]


Work = Callable[[Words, int], list[Request]]


def mixed(words: Words, seed: int) -> list[Request]:
    """Sixteen requests at once."""
    sizes = zip(MIXED_PROMPTS, MIXED_ANSWERS, strict=True)
    return [Request(tuple(words.prompt(size, (1, seed, n))), answer) for n, (size, answer) in enumerate(sizes)]


def alone(words: Words, seed: int) -> list[Request]:
    """One request."""
    return [Request(tuple(words.prompt(ALONE_PROMPT, (2, seed))), ALONE_ANSWER)]


def prefix(words: Words, seed: int) -> list[Request]:
    """Questions about one long text, each sent after the answer to the one before: the first finds an empty cache."""
    text = words.prompt(PREFIX_TOKENS, (3, seed))
    questions = [words.prompt(QUESTION_TOKENS, (4, seed, number)) for number in range(1 + NUM_HITS)]
    return [Request((*text, *question), PREFIX_ANSWER, None) for question in questions]


def arrival(words: Words, seed: int) -> list[Request]:
    """Eight requests, and a long prompt once they stream their tokens."""
    others = [Request(tuple(words.prompt(OTHERS_PROMPT, (5, seed, n))), OTHERS_ANSWER) for n in range(NUM_OTHERS)]
    long = Request(tuple(words.prompt(LONG_PROMPT, (6, seed))), LONG_ANSWER, TOKENS_BEFORE_ARRIVAL)
    return [*others, long]


def warm(requests: Sequence[Request]) -> list[Request]:
    """The same requests with short answers: every shape is seen once, in little time."""
    return [
        replace(
            each,
            max_tokens=min(each.max_tokens, WARM_TOKENS),
            after_tokens=each.after_tokens and min(each.after_tokens, WARM_TOKENS // 2),
        )
        for each in requests
    ]


class Arrivals:
    """The requests that are due, as tokens arrive."""

    def __init__(self, requests: Sequence[Request]) -> None:
        self._requests = requests
        self._told = [0] * len(requests)
        self._ended = [False] * len(requests)
        self._next = 0

    @property
    def all_ended(self) -> bool:
        return all(self._ended)

    def due(self) -> list[int]:
        """Places of requests to submit now; each is returned once."""
        found = []
        while self._next < len(self._requests) and self._comes(self._requests[self._next].after_tokens):
            found.append(self._next)
            self._next += 1
        return found

    def told(self, place: int, num_tokens: int, has_ended: bool) -> None:
        """Record new tokens of a request, and whether they were its last."""
        self._told[place] += num_tokens
        self._ended[place] = self._ended[place] or has_ended

    def _comes(self, after_tokens: int | None) -> bool:
        if after_tokens is None:
            return all(self._ended[: self._next])
        return all(
            told >= after_tokens or ended for told, ended in zip(self._told[: self._next], self._ended, strict=False)
        )


def check(words: Words, requests: Sequence[Request], answers: Sequence[Answer]) -> None:
    """Every token must be the right one, and every prompt must have as many as were sent.

    Raises: BenchError at the first that is wrong.
    """
    for number, (request, answer) in enumerate(zip(requests, answers, strict=True)):
        right = words.answer(request.prompt, request.max_tokens)
        where = f"request {number} ({len(request.prompt)} tokens, {request.max_tokens} wanted)"
        if answer.ids is not None and answer.ids != right:
            wrong = next((n for n, pair in enumerate(zip(answer.ids, right, strict=False)) if pair[0] != pair[1]), None)
            raise BenchError(f"{where}: {len(answer.ids)} tokens came, the first wrong one is {wrong}")
        if answer.text is not None and answer.text.strip() != words.text(right).strip():
            raise BenchError(f"{where}: wrong text: {answer.text[:80]!r}, not {words.text(right)[:80]!r}")
        if len(answer.times) != request.max_tokens:
            raise BenchError(f"{where}: {len(answer.times)} tokens came")
        if answer.prompt_tokens not in (None, len(request.prompt)):
            raise BenchError(f"{where}: the engine counts {answer.prompt_tokens} tokens in the prompt")
