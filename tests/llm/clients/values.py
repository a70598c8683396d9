"""What a client asks and what it reads, in OpenAI's words whichever dialect carried it: one test reads them all."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from numpy.typing import NDArray

TIMEOUT_SECONDS = 30.0
PROMPT = "one two"


@dataclass(frozen=True, slots=True)
class Asked:
    """A text to be had for PROMPT.

    `options` are fields of the client's own dialect, put into its request as they are. `tensors` says by which names a
    V2 client asks: `vllm`, `trtllm`, `plain` (max_tokens beside the text), or `text` alone. Of a stream the client
    leaves after `leave_after` pieces of text.
    """

    model: str
    max_tokens: int = 3
    streams: bool = False
    options: Mapping[str, Any] = field(default_factory=dict)
    tensors: str = "vllm"
    id: str = ""
    leave_after: int | None = None


@dataclass(frozen=True, slots=True)
class Told:
    """What a client has read. `pieces` are its text as it came, one where it came whole; None and "" is what nobody
    told."""

    pieces: Sequence[str]
    reason: str = ""
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    model: str = ""
    id: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)
    tool_calls: Sequence[tuple[str, Any]] = ()  # name and arguments
    thoughts: str = ""

    @property
    def text(self) -> str:
        return "".join(self.pieces)


@dataclass(frozen=True, slots=True)
class Tensor:
    """An input of an inference that is no text's."""

    name: str
    datatype: str
    array: NDArray[Any]


@dataclass(frozen=True, slots=True)
class Inferred:
    """Its one output, and who answered."""

    array: NDArray[Any]
    model: str
    id: str


class RefusedError(Exception):
    """The client was told an error: its status (HTTP's, or gRPC's by name; None where none is told), the words, and
    the whole body where there is one."""

    def __init__(self, status: int | str | None, message: str, body: Any = None) -> None:
        super().__init__(f"{status}: {message}")
        self.status = status
        self.message = message
        self.body = body


class LeftError(Exception):
    """The client has left in the middle of a stream, with so much read."""

    def __init__(self, pieces: Sequence[str]) -> None:
        super().__init__("".join(pieces))
        self.pieces = pieces


def gathered(events: Iterable[Any], text_of: Any, asked: Asked) -> list[Any]:
    """All events of a stream.

    Raises: LeftError once as many of them have text as the client wants.
    """
    found, pieces = [], []
    for event in events:
        found.append(event)
        if text := text_of(event):
            pieces.append(text)
            if len(pieces) == asked.leave_after:
                raise LeftError(pieces)
    return found


def words(body: Any) -> str:
    """The message of an error's body, whoever's it is."""
    if isinstance(body, dict):
        inner = body.get("error", body)
        return str(inner["message"] if isinstance(inner, dict) else inner)
    return str(body)
