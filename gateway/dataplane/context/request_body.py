"""A request's body: streamed on, and kept only as long as it may be sent again."""

from __future__ import annotations

from gateway.config.settings import Limits
from gateway.dataplane.context.head_reader import Request
from gateway.protocol.errors import ErrorKind, GatewayError, bad_request
from gateway.protocol.json_bounds import BOUNDS, SHORT_BYTES, JsonBounds
from gateway.protocol.operations import Operation
from gateway.protocol.v2_facts import BodyFacts, read_body_facts, without_numbers
from gateway.wire.content_codec import inflated
from gateway.wire.grpc import inflated_too_long
from gateway.wire.http1.body import LAST_CHUNK, encode_chunk

_RAW = BodyFacts(
    error=bad_request("a raw binary request (Inference-Header-Content-Length: 0) has no parameters and no named inputs")
)
_NOT_RAW = BodyFacts(
    error=bad_request("Inference-Header-Content-Length is 0, and the whole body of this request is JSON")
)


def document(request: Request, data: bytes, limits: Limits) -> bytes:
    """A whole body without its Content-Encoding, whose JSON may be read whole.

    Raises: GatewayError, as `decoded`; BODY_TOO_LARGE, too, where it has more values or items than a reader may build.
    """
    body = decoded(request, data, limits)
    if len(body) > SHORT_BYTES:
        text = body[: request.json_bytes]
        bounds = limits.json_bounds
        short, num_numbers = without_numbers(text, bounds), 0
        if short is not text:
            num_numbers = text.count(b",") - short.count(b",") + 16 * (text.count(b"[") - short.count(b"["))
        bounds.check(short, num_numbers)
    return body


def decoded(request: Request, data: bytes, limits: Limits) -> bytes:
    """A whole body without its Content-Encoding.

    Raises: GatewayError where the coding is unknown (UNSUPPORTED), the body malformed (BAD_REQUEST) or longer than
    `limits` allow (BODY_TOO_LARGE).
    """
    coding = request.plan.encoding
    if coding is None:
        return data
    max_bytes = limits.most_inflated(len(data))
    try:
        plain = inflated(coding, data, max_bytes)
    except LookupError:
        raise GatewayError(ErrorKind.UNSUPPORTED, "Unsupported compression type") from None
    except ValueError as error:
        raise GatewayError(ErrorKind.BAD_REQUEST, f"the compressed body is malformed: {error}") from None
    if len(plain) > max_bytes:
        raise inflated_too_long("the compressed body", len(data), max_bytes)
    return plain


def _bounds(data: bytes, limits: Limits) -> JsonBounds:
    """The bounds of a body; a short one needs none of its own."""
    return limits.json_bounds if len(data) > SHORT_BYTES else BOUNDS


def declared_json_bytes(length: bytes | None, size: int) -> int | None:
    """Where the JSON of a V2 body of this size ends, by its Inference-Header-Content-Length; None where all is JSON.

    Raises: GatewayError(BAD_REQUEST).
    """
    if length is None:
        return None
    if not length.isdigit() or len(length) > 18 or int(length) > size:
        what = f"Inference-Header-Content-Length {length.decode('latin-1')!r} is no number from 0 to {size}"
        raise GatewayError(ErrorKind.BAD_REQUEST, what)
    return int(length)


class RequestBody:
    """A body that is held until it is taken, then passed on piece by piece.

    Pieces are kept until the body is longer than `replay_bytes`: up to there the request can be sent again.
    """

    __slots__ = (
        "_pieces",
        "_replay_bytes",
        "_request",
        "_sends_chunks",
        "can_be_sent_again",
        "is_complete",
        "size",
    )

    def __init__(self, request: Request, replay_bytes: int) -> None:
        self._request = request
        self._replay_bytes = replay_bytes
        self._pieces: list[bytes] = []
        self._sends_chunks = False
        self.size = 0
        self.is_complete = False
        self.can_be_sent_again = True

    @property
    def framing_line(self) -> bytes:
        """How the body will be framed, beside a Content-Length that the head already has. Read before `take`."""
        if self._request.length is not None:
            return b""
        if self.is_complete:  # its length is known, and every engine takes a length
            return b"content-length: %d\r\n" % self.size
        return b"transfer-encoding: chunked\r\n"

    def add(self, data: bytes, ended: bool) -> None:
        if data:
            self.size += len(data)
            self._pieces.append(data)
        self.is_complete = ended

    def keep_up_to(self, size: int) -> None:
        """It may be needed again though it is longer than others that are kept."""
        self._replay_bytes = max(self._replay_bytes, size)

    def take(self, *, keeps: bool) -> bytes:
        """All that has come so far, framed to be sent; `keeps`: it may be needed for another attempt.

        Memory that is not kept is free for the next read while it is still in the processor's cache.
        """
        if not keeps:
            self._replay_bytes = -1
        self._sends_chunks = self._request.length is None and not self.is_complete
        pieces = self._pieces
        data = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        if self.size > self._replay_bytes:
            self._forget()
        return encode_chunk(data) if self._sends_chunks else data

    def pass_on(self, data: bytes, ended: bool) -> bytes:
        """A further piece, framed to be sent."""
        self.add(data, ended)
        if self.size > self._replay_bytes:
            self._forget()
        if not self._sends_chunks:
            return data
        return encode_chunk(data) + LAST_CHUNK if ended else encode_chunk(data)

    def held(self) -> bytes:
        """All that has come, as it came."""
        pieces = self._pieces
        if len(pieces) > 1:
            pieces[:] = [b"".join(pieces)]
        return pieces[0] if pieces else b""

    def facts(self, operation: Operation, limits: Limits) -> BodyFacts | None:
        """The facts in the body's JSON, or why it cannot be read; None while more of it must come.

        A declared length of 0 is refused whatever the body is: engines that do not know this field read JSON in it, and
        so does Triton in operations that take no raw binary requests.

        Raises: GatewayError(BODY_TOO_LARGE) where it is more than may be read.
        """
        if self._request.json_length and not self._request.json_length.strip(b"0"):
            return _RAW if operation is Operation.INFER else _NOT_RAW
        length = self._request.json_bytes if self._request.plan.encoding is None else None
        if not self.is_complete and (length is None or self.size < length):
            return None
        data = self.held()
        try:
            data = decoded(self._request, data, limits)
            json_bytes = declared_json_bytes(self._request.json_length, len(data))
            return read_body_facts(operation, data[:json_bytes], _bounds(data, limits))
        except GatewayError as error:
            if error.kind is ErrorKind.BODY_TOO_LARGE:
                raise
            if error.kind is ErrorKind.UNSUPPORTED:
                error = GatewayError(ErrorKind.UNSUPPORTED_CODING, error.message)
            return BodyFacts(error=error)

    @property
    def may_name_a_sequence(self) -> bool:
        """Whether sending it twice could advance a sequence twice. Read only once an attempt has failed."""
        if self._request.plan.encoding is not None:
            return True
        return b'"sequence_id"' in self.held()

    def _forget(self) -> None:
        """Drop what is sent: it is too long to be sent again."""
        self._pieces.clear()
        self.can_be_sent_again = False
