"""The messages in the benchmark: each request byte for byte, and its right answer.

The loader, the canned upstream and the checks all use this module, so that they agree on what is measured. Requests are
written as tritonclient writes them: few headers, head and body in one piece.
"""

import dataclasses
import json
import re
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

TENSOR_BYTES = 600_000  # the size of one 224 x 224 x 3 FP32 image, the most usual large tensor
TOKENS_PER_STREAM = 128  # at 10 ms a token about 1.3 s a stream: each connection serves several streams in a run

HEALTH_PATH = "/v2/health/ready"
SMALL_PATH = "/v2/models/simple/infer"
TENSOR_PATH = "/v2/models/tensor/infer"
HUGE_PATH = "/v2/models/huge/infer"
STREAM_PATH = "/v2/models/llm/generate_stream"

_CONTENT_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
_CHUNKED = re.compile(rb"\r\ntransfer-encoding: *chunked", re.IGNORECASE)


def compact_json(document: Any) -> bytes:
    return json.dumps(document, separators=(",", ":")).encode()


def _vector(name: str, offset: int) -> dict[str, Any]:
    return {"name": name, "shape": [1, 16], "datatype": "INT32", "data": [offset + index for index in range(16)]}


def _tensor(direction: str) -> tuple[bytes, bytes]:
    """The JSON part and the binary tail of a message that carries one 600 KB tensor."""
    tensor = {"name": f"{direction}0", "shape": [1, TENSOR_BYTES // 4], "datatype": "FP32"}
    document: dict[str, Any] = {f"{direction.lower()}s": [tensor | {"parameters": {"binary_data_size": TENSOR_BYTES}}]}
    if direction == "OUTPUT":
        document = {"model_name": "tensor", "model_version": "1"} | document
    return compact_json(document), bytes(range(250)) * (TENSOR_BYTES // 250)


_TENSOR_REQUEST, _TENSOR_TAIL = _tensor("INPUT")
TENSOR_ANSWER_JSON, _ = _tensor("OUTPUT")

SMALL_ANSWER = compact_json({"model_name": "simple", "model_version": "1", "outputs": [_vector("OUTPUT0", 0)]})
TENSOR_ANSWER = TENSOR_ANSWER_JSON + _TENSOR_TAIL


def token_event(sent_at_microseconds: int) -> bytes:
    """One token of Triton's generate_stream; its text is the time at which it was sent, from which its delay is
    computed."""
    return (
        b'data: {"model_name":"llm","model_version":"1","sequence_end":false,"text_output":"%016d"}\n\n'
        % sent_at_microseconds
    )


TOKEN_BYTES = len(token_event(0))
TOKEN_TIME = slice(token_event(0).index(b"0000000000000000"), token_event(0).index(b"0000000000000000") + 16)
STREAM_BYTES = TOKEN_BYTES * TOKENS_PER_STREAM


@dataclass(frozen=True, slots=True)
class Exchange:
    """One kind of request, and the number of body bytes of its right answer (None if it streams in chunks)."""

    path: str
    body: bytes
    answer_bytes: int | None
    headers: tuple[str, ...] = ()
    user_agent: str = "python/gevent-http-client-2.6.1"

    def parts(self, *more_headers: str) -> tuple[bytes, bytes]:
        """The request, split where more headers can be inserted: up to the last header line, and from there to its
        end."""
        lines = (
            f"POST {self.path} HTTP/1.1",
            "Host: 127.0.0.1:8000",
            f"User-Agent: {self.user_agent}",
            *self.headers,
            f"Content-Length: {len(self.body)}",
            *more_headers,
        )
        return "".join(f"{line}\r\n" for line in lines).encode(), b"\r\n" + self.body

    def request(self) -> bytes:
        return b"".join(self.parts())


# The key of the requests to the gateway that asks for one, which reports under a name of its own.
API_KEY_ID = "0123456789ab"
API_KEY = f"pmi-{API_KEY_ID}-{'k' * 43}"
KEYED = "ours-keys"

EXCHANGES = {
    "small": Exchange(
        path=SMALL_PATH,
        body=compact_json({"inputs": [_vector("INPUT0", 0), _vector("INPUT1", 16)], "outputs": [{"name": "OUTPUT0"}]}),
        answer_bytes=len(SMALL_ANSWER),
        headers=("Content-Type: application/json", "Accept: */*"),
    ),
    # Its requests are those of `mixed`; this one is for the check before the load.
    "mixed": Exchange(
        path="/v2/models/mixed-1/infer",
        body=compact_json({"inputs": [_vector("INPUT0", 0), _vector("INPUT1", 16)], "outputs": [{"name": "OUTPUT0"}]}),
        answer_bytes=len(SMALL_ANSWER),
        headers=("Content-Type: application/json", "X-Session-Id: session-1"),
    ),
    "tensor": Exchange(
        path=TENSOR_PATH,
        body=_TENSOR_REQUEST + _TENSOR_TAIL,
        answer_bytes=len(TENSOR_ANSWER),
        headers=(
            "Content-Type: application/octet-stream",
            "Accept: */*",
            f"Inference-Header-Content-Length: {len(_TENSOR_REQUEST)}",
        ),
    ),
    "sse": Exchange(
        path=STREAM_PATH,
        body=compact_json(
            {"text_input": "Tell me a story.", "parameters": {"stream": True, "max_tokens": TOKENS_PER_STREAM}}
        ),
        answer_bytes=None,
        headers=("Content-Type: application/json", "Accept: text/event-stream"),
    ),
    "huge": Exchange(
        path=HUGE_PATH,
        body=compact_json({"inputs": [_vector("INPUT0", 0)]}),
        answer_bytes=None,
        headers=("Content-Type: application/json", "Accept: */*"),
    ),
}

EXCHANGES["keys"] = dataclasses.replace(
    EXCHANGES["small"], headers=(*EXCHANGES["small"].headers, f"Authorization: Bearer {API_KEY}")
)


def upstream_of(exchange: str) -> str:
    """The upstream that answers an exchange: small JSON has one of its own, `bulk` answers all others."""
    return "small" if exchange in ("small", "keys", "mixed") else "bulk"


def session_requests(exchange: Exchange, sessions: int, *, in_body: bool) -> Callable[[], bytes]:
    """A function that writes the same request for one session after another, named by a header or by a parameter of the
    body; after `sessions` of them it starts again, so that sessions are new in the first pass only."""
    serial = -1

    def request() -> bytes:
        nonlocal serial
        serial += 1
        name = f"session-{serial % sessions:08d}"
        if not in_body:
            return b"".join(exchange.parts(f"x-session-id: {name}"))
        body = exchange.body.replace(b"{", b'{"parameters":{"session_id":"%b"},' % name.encode(), 1)
        return dataclasses.replace(exchange, body=body).request()

    return request


def unique_requests(exchange: Exchange) -> Callable[[], bytes]:
    """A function that writes the same request each time under another x-request-id and traceparent."""
    before, after = exchange.parts()
    run = secrets.token_hex(4).encode()
    serial = 0

    def request() -> bytes:
        nonlocal serial
        serial += 1
        mark = b"%s%08x" % (run, serial)
        return b"%sx-request-id: %s\r\ntraceparent: 00-%s%s-%s-01\r\n%s" % (before, mark, mark, mark, mark, after)

    return request


def content_length(head: bytes) -> int | None:
    found = _CONTENT_LENGTH.search(head)
    return int(found[1]) if found else None


def is_chunked(head: bytes) -> bool:
    return _CHUNKED.search(head) is not None
