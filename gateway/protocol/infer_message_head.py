"""The first fields of a V2 gRPC request, read from the wire: tensors are stepped over, never decoded.

ModelInferRequest and the requests about one model (ModelReady, ModelMetadata, ModelConfig) all have the model's name in
field 1 and its version in field 2. Of a field that comes twice the last one counts, wherever it stands.
Source: protobuf's encoding; Triton's grpc_service.proto.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from itertools import islice
from typing import NamedTuple

from gateway.protocol.advertised_models import ModelName
from gateway.protocol.datatypes import data_bytes
from gateway.protocol.errors import ErrorKind, GatewayError, bad_request
from gateway.protocol.protobuf_wire import (
    BYTES,
    END_GROUP,
    FIXED64,
    MAX_DEPTH,
    MAX_FIELDS,
    START_GROUP,
    VARINT,
    Field,
    fields,
    malformed,
    read_tag,
    read_varint,
    skip,
    too_many_fields,
    write_varint,
)
from gateway.protocol.v2_facts import MAX_RANK, BodyFacts, InputFacts, Scalar

MODEL_TAG = 0x0A  # field 1, bytes
_VERSION_TAG = 0x12
_ID_TAG = 0x1A
_FIRST_TENSOR_TAG = 0x2A  # field 5, bytes
_MAX_NAME_BYTES = 64 * 1024
_MAX_SPANS = 16
# Of a long message: each is a tensor, a parameter, or what no reader knows.
_MAX_FIELDS = 4096
_LONG_BYTES = 64 * 1024


class Names(NamedTuple):
    """Whom a message names. `spans` is where the model's field stands in it, tag and all: mostly once, at its start."""

    model: bytes
    version: bytes
    id: bytes
    spans: tuple[tuple[int, int], ...]

    @property
    def of_model(self) -> ModelName:
        return self.model.decode("utf-8", "replace"), self.version.decode("utf-8", "replace")


class NamesReader:
    """Reads the names of a long message while it passes.

    Every serialiser writes fields in the order of their numbers, so once a model's name has come and later fields
    begin, the names can be acted on: `settle`. A message that names something else after that is refused.
    """

    __slots__ = (
        "_at",
        "_buffer",
        "_fields_left",
        "_groups",
        "_is_settled",
        "_model",
        "_skip",
        "_spans",
        "_version",
        "may_settle",
    )

    def __init__(self) -> None:
        self._at = 0  # of the buffer's start in the message
        self._buffer = b""
        self._skip = 0  # bytes of a field that is skipped
        self._fields_left = _MAX_FIELDS
        self._groups: list[int] = []  # the numbers of those under way
        self._model = b""
        self._version = b""
        self._spans: tuple[tuple[int, int], ...] = ()
        self._is_settled = False
        self.may_settle = False

    def settle(self) -> Names:
        """The names are acted on: from now on no other may come."""
        self._is_settled = True
        return Names(self._model, self._version, b"", self._spans)

    def feed(self, data: bytes) -> None:
        """Read on. Raises: GatewayError(BAD_REQUEST) where it is no protobuf message, or names somebody else too
        late."""
        if self._skip >= len(data):
            self._skip -= len(data)
            self._at += len(data)
            return
        if self._skip:
            data = data[self._skip :]
            self._at += self._skip
            self._skip = 0
        data = self._buffer + data
        at = 0
        try:
            while at < len(data):
                at = self._read_field(data, at)
                self._fields_left -= 1
                if not self._fields_left:
                    raise too_many_fields(_MAX_FIELDS)
        except IndexError:  # the field goes on in the next piece
            pass
        self._skip = max(0, at - len(data))
        rest = data[at:]
        self._at += min(at, len(data))
        self._buffer = rest
        if len(rest) > _MAX_NAME_BYTES:
            raise malformed()

    def _read_field(self, data: bytes, start: int) -> int:
        """Returns where the field ends, which may lie behind what there is. Raises: IndexError where its head or, of a
        name, its text is not there yet."""
        tag, at = read_tag(data, start)
        kind = tag & 7
        if kind in (START_GROUP, END_GROUP):
            self._enter_or_leave_group(tag)
            return at
        if kind != BYTES:
            return skip(data, at, tag)
        size, at = read_varint(data, at)
        stop = at + size
        if self._groups:  # whatever is in them belongs to them
            return stop
        if tag not in (MODEL_TAG, _VERSION_TAG):
            if tag >= _FIRST_TENSOR_TAG:
                self.may_settle = bool(self._spans)
            return stop
        if size > _MAX_NAME_BYTES:
            raise malformed()
        if stop > len(data):
            raise IndexError
        name = data[at:stop]
        if self._is_settled:
            late = "the model's name stands behind the tensors of a long message: put it first"
            raise GatewayError(ErrorKind.BAD_REQUEST, late)
        if tag == MODEL_TAG:
            self._model = name
            self._spans += ((self._at + start, self._at + stop),)
            if len(self._spans) > _MAX_SPANS:
                raise too_many_names()
        else:
            self._version = name
        return stop

    def _enter_or_leave_group(self, tag: int) -> None:
        if tag & 7 == START_GROUP:
            self._groups.append(tag >> 3)
            if len(self._groups) > MAX_DEPTH:
                raise malformed()
        elif not self._groups or self._groups.pop() != tag >> 3:
            raise malformed()


def read_names(data: bytes, at: int, end: int) -> Names:
    """Read a whole message, which stands in `data` from `at` to `end`; spans count from `at`. Raises:
    GatewayError(BAD_REQUEST) where it is no protobuf message."""
    begin = at
    if end - at > _LONG_BYTES:
        _check_fields(data, at, end)
    model = version = request_id = b""
    spans: tuple[tuple[int, int], ...] = ()
    try:
        while at < end:
            start = at
            tag = data[at]
            at += 1
            if tag >= 0x80:
                tag, at = read_tag(data, start)
            if tag & 7 == BYTES:
                size = data[at]
                at += 1
                if size >= 0x80:
                    size, at = read_varint(data, at - 1)
                stop = at + size
                if tag == MODEL_TAG:
                    model = data[at:stop]
                    spans += ((start - begin, stop - begin),)
                    if len(spans) > _MAX_SPANS:
                        raise too_many_names()
                elif tag == _VERSION_TAG:
                    version = data[at:stop]
                elif tag == _ID_TAG:
                    request_id = data[at:stop]
                elif tag < 8:
                    raise malformed()
                at = stop
            elif tag < 8:
                raise malformed()
            else:
                at = skip(data, at, tag)
    except IndexError:
        at = end + 1
    if at != end:
        raise malformed()
    return Names(model, version, request_id, spans)


def too_many_names() -> GatewayError:
    return GatewayError(ErrorKind.BAD_REQUEST, f"the message names its model more than {_MAX_SPANS} times")


def _check_fields(data: bytes, at: int, end: int) -> None:
    """Raises: GatewayError(BODY_TOO_LARGE) where a message has too many fields."""
    for _ in range(_MAX_FIELDS):
        if at >= end:
            return
        try:
            tag, at = read_tag(data, at)
            at = skip(data, at, tag)
        except IndexError:
            return  # the reader reports it
    raise too_many_fields(_MAX_FIELDS)


def renamed(message: bytes, names: Names, model: bytes) -> bytes:
    """The message with another model's name: the old one's fields cut out, the new one in front."""
    pieces = [bytes((MODEL_TAG,)), write_varint(len(model)), model]
    at = 0
    for start, stop in names.spans:
        pieces.append(message[at:start])
        at = stop
    pieces.append(message[at:])
    return b"".join(pieces)


def read_body_facts(message: bytes) -> BodyFacts:
    """What rules may ask of a ModelInferRequest: its parameters, and what its inputs say of themselves. Raises:
    GatewayError(BAD_REQUEST) where it is malformed, (BODY_TOO_LARGE) where it has too many fields at any depth."""
    return _FactsReader().read(message)


def facts_or_error(message: bytes) -> BodyFacts:
    """The same, for rules, which refuse a message that they need and cannot read."""
    try:
        return read_body_facts(message)
    except GatewayError as error:
        return BodyFacts(error=error)


class _FactsReader:
    """Reads the facts of one message. Its fields are bounded, those within tensors and parameters included."""

    def __init__(self) -> None:
        self._left = MAX_FIELDS

    def read(self, message: bytes) -> BodyFacts:
        parameters: dict[str, Scalar] = {}
        inputs: list[tuple[str, str, tuple[int, ...], int | None]] = []
        raw: list[int] = []
        for number, kind, value in self._fields(message):
            if kind != BYTES or not isinstance(value, bytes):
                continue
            if number == 4:
                self._add_parameter(parameters, value)
            elif number == 5:
                inputs.append(self._input(value))
            elif number == 7:
                raw.append(len(value))
        sizes = iter(raw)
        return BodyFacts(
            parameters,
            tuple(
                InputFacts(name, datatype, shape, next(sizes, 0) if size is None else size)
                for name, datatype, shape, size in inputs
            ),
        )

    def _fields(self, message: bytes) -> Iterator[Field]:
        for field in fields(message):
            self._left -= 1
            if self._left < 0:
                raise too_many_fields(MAX_FIELDS)
            yield field

    def _add_parameter(self, parameters: dict[str, Scalar], entry: bytes) -> None:
        """An entry of `map<string, InferParameter>`."""
        key, chosen = "", []
        for number, kind, value in self._fields(entry):
            if kind == BYTES and isinstance(value, bytes):
                if number == 1:
                    key = value.decode("utf-8", "replace")
                elif number == 2:
                    chosen.append(value)  # messages that come twice are one
        for number, kind, value in self._fields(b"".join(chosen)):
            if isinstance(value, int):
                if number in (1, 2, 5):
                    parameters[key] = bool(value) if number == 1 else _signed(value) if number == 2 else value
            elif number == 3 and kind == BYTES:
                parameters[key] = value.decode("utf-8", "replace")
            elif number == 4 and kind == FIXED64:
                parameters[key] = struct.unpack("<d", value)[0]

    def _input(self, tensor: bytes) -> tuple[str, str, tuple[int, ...], int | None]:
        """An InferInputTensor: name, datatype, shape, bytes of its data; None where these are raw and stand
        elsewhere."""
        name, datatype = "", ""
        shape: list[int] = []
        contents: list[bytes] = []
        parameters: dict[str, Scalar] = {}
        for number, kind, value in self._fields(tensor):
            if kind == VARINT and isinstance(value, int):
                if number == 3:
                    shape.append(_signed(value))
            elif kind == BYTES and isinstance(value, bytes):
                if number == 1:
                    name = value.decode("utf-8", "replace")
                elif number == 2:
                    datatype = value.decode("utf-8", "replace")
                elif number == 3:
                    shape += [_signed(axis) for axis in islice(_packed(value), MAX_RANK + 1)]
                elif number == 4:
                    self._add_parameter(parameters, value)
                elif number == 5:
                    contents.append(value)
        if len(shape) > MAX_RANK:
            raise bad_request(f"input '{name}' has more than {MAX_RANK} axes")
        declared = parameters.get("shared_memory_byte_size")
        if isinstance(declared, int):
            return name, datatype, tuple(shape), declared
        if not contents:
            return name, datatype, tuple(shape), None
        size = data_bytes(datatype, tuple(shape))
        if size is None:
            size = self._text_bytes(b"".join(contents))
        return name, datatype, tuple(shape), size

    def _text_bytes(self, contents: bytes) -> int:
        """The bytes of the texts in an InferTensorContents. Where fields run out, that of all the rest: texts, and what
        stands before each."""
        size = at = 0
        for number, kind, value in fields(contents, len(contents)):
            if self._left <= 0:
                return size + len(contents) - at
            self._left -= 1
            if isinstance(value, bytes):
                at += len(value) + (1 + len(write_varint(len(value))) if kind == BYTES else 1)
                size += len(value) if number == 8 else 0
        return size


def _packed(value: bytes) -> Iterator[int]:
    at = 0
    while at < len(value):
        try:
            number, at = read_varint(value, at)
        except IndexError:
            raise malformed() from None
        yield number


def _signed(number: int) -> int:
    """An int64 as varints hold it."""
    return number - (1 << 64) if number >> 63 else number
