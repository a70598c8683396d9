"""A client's request and its result, in OpenAI's terms whatever the dialect, so that one test can check all clients."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from numpy.typing import NDArray

TIMEOUT_SECONDS = 120.0
PROMPT = "one two"


@dataclass(frozen=True, slots=True)
class TextRequest:
    """A request for a text that continues or answers PROMPT.

    `options` are fields of the client's own dialect, put into its request unchanged. `tensors` names the inputs that a
    V2 client uses: `vllm`, `trtllm`, `plain` (max_tokens beside the text), or `text` alone. From a stream the client
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
class TextResult:
    """A client's result. `pieces` are its text as it came, one piece unless streamed; None and "" stand for what the
    reply lacks."""

    pieces: Sequence[str]
    reason: str = ""
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    model: str = ""
    id: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)
    tool_calls: Sequence[tuple[str, Any]] = ()  # name and arguments
    thoughts: str = ""
    is_estimated: bool = False  # the tokens

    @property
    def text(self) -> str:
        return "".join(self.pieces)


@dataclass(frozen=True, slots=True)
class Tensor:
    """An input of an inference that is not about text."""

    name: str
    datatype: str
    array: NDArray[Any]


@dataclass(frozen=True, slots=True)
class Inferred:
    """The one output of an inference, and the model that returned it."""

    array: NDArray[Any]
    model: str
    id: str


class RefusedError(Exception):
    """The client got an error: its status (HTTP's, or gRPC's by name; None if it has none), its message, and the whole
    body if there is one."""

    def __init__(self, status: int | str | None, message: str, body: Any = None) -> None:
        super().__init__(f"{status}: {message}")
        self.status = status
        self.message = message
        self.body = body


class LeftError(Exception):
    """The client left in the middle of a stream after reading these pieces."""

    def __init__(self, pieces: Sequence[str]) -> None:
        super().__init__("".join(pieces))
        self.pieces = pieces


def gathered(events: Iterable[Any], text_of: Any, asked: TextRequest) -> list[Any]:
    """All events of a stream.

    Raises: LeftError once `leave_after` of them have text.
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
    """The message of an error's body, in any dialect."""
    if isinstance(body, dict):
        inner = body.get("error", body)
        return str(inner["message"] if isinstance(inner, dict) else inner)
    return str(body)
