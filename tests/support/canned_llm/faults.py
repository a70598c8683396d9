"""Faults of the canned engine: `NAME` or `NAME=VALUE`, several with commas, as in `slow=0.01,die=5`.

They are set by the request header `x-test-fault`, or by POST /test/fault for requests that cannot carry that header.
K is the number of tokens sent, or, where the reply is not streamed, produced.
"""

from dataclasses import dataclass, fields
from typing import Self


@dataclass(frozen=True, slots=True)
class Faults:
    """Each fault is off where it is None."""

    close: int | None = None  # `close`: the connection is closed before the first byte
    reset: int | None = None  # `reset`: as close, with RST
    hang: int | None = None  # `hang`: no byte is ever sent
    status: int | None = None  # `status=503`: an error of the dialect with this status
    die: int | None = None  # `die=K`: RST after K tokens
    cut: int | None = None  # `cut=K`: the connection is closed after K tokens, the HTTP body unfinished
    truncate: int | None = None  # `truncate=K`: the body ends cleanly after K tokens, without a finish reason
    error: int | None = None  # `error=K`: an error event after K tokens, and the end
    stall: int | None = None  # `stall=K`: nothing more after K tokens, and the connection stays open
    garbage: int | None = None  # `garbage=K`: invalid JSON as an event after K tokens; not streamed: as the whole body
    no_done: int | None = None  # `no-done`: all but the dialect's last event ([DONE], message_stop, response.completed)
    no_usage: int | None = None  # `no-usage`: usage is left out
    unframed: int | None = None  # `unframed`: HTTP/1.0, the end of the connection ends the body (as mlx-lm's server)
    comments: int | None = None  # `comments`: an SSE comment before each event
    split: int | None = None  # `split=N`: a stream is sent in pieces of N bytes
    slow: float | None = None  # `slow=S`: S seconds before each token

    @classmethod
    def read(cls, text: str) -> Self:
        """Raises: ValueError for an unknown fault."""
        types = {field.name: float if field.name == "slow" else int for field in fields(cls)}
        found: dict[str, float] = {}
        for part in filter(None, (part.strip() for part in text.split(","))):
            name, _, value = part.partition("=")
            name = name.replace("-", "_")
            if name not in types:
                raise ValueError(f"no fault is called {name!r}")
            found[name] = types[name](value or 0)
        return cls(**found)  # type: ignore[arg-type]
