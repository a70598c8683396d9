"""Header fields of HTTP/2: what a decoded block holds, and what is malformed in it (RFC 9113 section 8)."""

from __future__ import annotations

import re
from collections.abc import Callable

Field = tuple[bytes, bytes]

GRPC = b"application/grpc"  # how the content-type of calls begins

# What a field of a list counts beyond its name and value (RFC 9113 section 6.5.2), and an entry of HPACK's table.
ENTRY_BYTES = 32

# Names in lower case (section 8.2.1); values without NUL, CR and LF, and without blanks around them.
_NAME = rb"[!#$%&'*+\-.^_`|~0-9a-z]++"
_VALUE = rb"(?![ \t])[\t\x20-\x7e\x80-\xff]*+(?<![ \t])"
# What belongs to an HTTP/1.1 connection (section 8.2.2).
_OF_CONNECTIONS = rb"(?:connection|keep-alive|proxy-connection|transfer-encoding|upgrade)\n|te\n(?!trailers\n)"
# A whole block, each name on a line and its value on the next: pseudo-fields stand first (section 8.3).
_WELL_FORMED = re.compile(
    rb"(?>:%(name)b\n%(value)b\n)*+(?>(?!%(not)b)%(name)b\n%(value)b\n)*+"
    % {b"name": _NAME, b"value": _VALUE, b"not": _OF_CONNECTIONS}
)
_ONE_NAME = re.compile(rb":?" + _NAME)
is_value = re.compile(_VALUE).fullmatch  # whether a value is well-formed
# What most values consist of. As many are judged at a time, since an entry of HPACK's table may come often.
_USUAL = bytes([*range(0x20, 0x7F), *range(0x80, 0x100)])
_MOST_AT_ONCE = 16
_ONE_OF_CONNECTIONS = re.compile(_OF_CONNECTIONS)
_OF_REQUESTS = frozenset({b":method", b":scheme", b":path", b":authority"})
# A request's method, scheme, path and authority, one on a line (section 8.3.1): the path has no blanks and no fragment,
# the authority names no user.
_TARGET = re.compile(
    rb"(?:[!#$%&'*+\-.^_`|~0-9A-Za-z]+\n[A-Za-z][A-Za-z0-9+.\-]*\n/[\x21\x22\x24-\x7e\x80-\xff]*"
    rb"|OPTIONS\n[A-Za-z][A-Za-z0-9+.\-]*\n\*)\n[^\x00-\x20#/?@\x7f-\xff]*"
)
_STATUS = re.compile(rb"[1-9][0-9][0-9]")


class Block:
    """The fields of one header block, in their order. `error` says what is malformed, None where nothing is; `length`
    is the content-length, `list_bytes` what the fields count against the longest list. `has_blanks`: values have blanks
    around them, which `fields` of requests still have; only those of gRPC calls may (gRPC's PROTOCOL-HTTP2).

    A connection whose peer repeats itself hands over the same object again and again: `note` is a place for what its
    reader made of it. Where all but a few fields are those of a block before, `base` is that block, and the few, which
    stand last in `fields`, have `own_names` and `own_values`; `shape` is what it shares with blocks whose own fields
    differ in value alone, if that is known.
    """

    __slots__ = (
        "_bytes_with",
        "_fault",
        "_fields",
        "_judge",
        "_names",
        "_names_with",
        "base",
        "error",
        "has_blanks",
        "length",
        "list_bytes",
        "note",
        "own_names",
        "own_values",
        "shape",
    )

    def __init__(self, fields: list[Field]) -> None:
        self._fields: list[Field] | None = fields
        self.length: int | None = None
        self.note: object = None
        self.base: Block | None = None
        self.own_names: tuple[bytes, ...] = ()
        self.own_values: tuple[bytes, ...] = ()
        self.shape: object = None
        self._judge: Callable[[Block], str | None] | None = None
        self._fault: str | None = None
        self._names: frozenset[bytes] | None = None  # once they are needed
        # The names of the latest block that was `like` this one, and `list_bytes` with them and without their values.
        self._names_with: tuple[bytes, ...] = ()
        self._bytes_with = 0
        self.has_blanks = False
        text = _text(fields)
        self.list_bytes = len(text) - 2 * len(fields) + ENTRY_BYTES * len(fields)
        is_well_formed = _is_well_formed(text, fields)
        if not is_well_formed:
            # Peers send blanks around values though they may not: Triton at the end of its errors, clients of gRPC in
            # metadata. Replies are taken without them, calls with them, other requests not at all.
            stripped = [(name, _without_blanks(name, value)) for name, value in fields]
            text = _text(stripped)
            self.has_blanks = is_well_formed = _is_well_formed(text, stripped)
            if fields[0][0] not in _OF_REQUESTS:
                self._fields = stripped
        self.error = None if is_well_formed else _first_fault(fields)
        if b"content-length\n" in text and is_well_formed:
            self._read_length()

    @classmethod
    def like(cls, base: Block, own: list[Field], max_list_bytes: int) -> Block | None:
        """The fields of another block, and a few more, whose names are known to be well-formed; None where it has one
        of these names already, since it might have to stand behind them, where a value is not well-formed, and where
        they are too long."""
        names, values = zip(*own, strict=True)
        if names != base._names_with and not base._lacks(names):
            return None
        list_bytes = base._bytes_with + sum(map(len, values))
        if list_bytes > max_list_bytes or not are_values(values):
            return None
        return cls.with_own(base, names, values, list_bytes, None)

    @classmethod
    def with_own(
        cls, base: Block, names: tuple[bytes, ...], values: tuple[bytes, ...], list_bytes: int, shape: object
    ) -> Block:
        """The fields of another block, and a few more, of these names, which are known to be well-formed and none of
        its."""
        block = cls.__new__(cls)
        block._fields = None  # mostly, nobody asks for them
        block.length = base.length
        block.note = block._judge = block._fault = None
        block.base = base
        block.list_bytes = list_bytes
        block.own_names = names
        block.own_values = values
        block.shape = shape
        block.error = base.error
        block._names = None
        block.has_blanks = base.has_blanks
        return block

    @property
    def fields(self) -> list[Field]:
        fields = self._fields
        if fields is None:
            assert self.base is not None
            fields = self._fields = self.base.fields + self.own
        return fields

    @property
    def own(self) -> list[Field]:
        """The fields that its base does not have."""
        return list(zip(self.own_names, self.own_values, strict=True))

    def _lacks(self, names: tuple[bytes, ...]) -> bool:
        """Whether it has none of these names; then a block that is `like` this one may have them."""
        if self._names is None:
            self._names = frozenset([name for name, _ in self.fields])
        if not self._names.isdisjoint(names):
            return False
        self._bytes_with = self.list_bytes + sum(map(len, names)) + ENTRY_BYTES * len(names)
        self._names_with = names
        return True

    def fault(self, judge: Callable[[Block], str | None]) -> str | None:
        """What is malformed in it as that for which `judge` takes it; None where nothing is."""
        judged = self.base or self
        if judged._judge is not judge:
            judged._judge, judged._fault = judge, judged.error or judge(judged)
        return self.error or judged._fault

    def value(self, name: bytes) -> bytes | None:
        """The first value of a field."""
        for field, value in self.fields:
            if field == name:
                return value
        return None

    def _read_length(self) -> None:
        values = {value for name, value in self.fields if name == b"content-length"}
        if not values:
            return
        text = values.pop()
        if values or not text.isdigit() or len(text) > 18:
            self.error = "content-length is not one number"
        else:
            self.length = int(text)


def are_values(values: tuple[bytes, ...]) -> bool:
    """Whether all of these are well-formed."""
    if len(values) <= _MOST_AT_ONCE and not b"".join(values).translate(None, _USUAL):
        return tuple(map(bytes.strip, values)) == values
    return all(map(is_value, values))


def _text(fields: list[Field]) -> bytes:
    lines: list[bytes] = []
    for field in fields:
        lines += field
    return b"\n".join(lines) + b"\n" if lines else b""


def _without_blanks(name: bytes, value: bytes) -> bytes:
    """A value as it may stand (section 8.2.1); gRPC has a way to write those of its messages."""
    stripped = value.rstrip(b" \t")
    if name == b"grpc-message":
        stripped += value[len(stripped) :].replace(b" ", b"%20").replace(b"\t", b"%09")
    return stripped.lstrip(b" \t")


def _is_well_formed(text: bytes, fields: list[Field]) -> bool:
    return _WELL_FORMED.fullmatch(text) is not None and text.count(b"\n") == 2 * len(fields)


def request_fault(block: Block) -> str | None:
    """What is malformed in a request's pseudo-fields (section 8.3.1); the block itself has no error."""
    if block.has_blanks and not (block.value(b"content-type") or b"").startswith(GRPC):
        return "a value has blanks around it"
    found: dict[bytes, bytes] = {}
    for name, value in block.fields:
        if not name.startswith(b":"):
            break
        if name in found or name not in _OF_REQUESTS:
            return f"the pseudo-field {name[:40].decode()} is not one of a request, or comes twice"
        found[name] = value
    method, authority = found.get(b":method"), found.get(b":authority", b"")
    if method == b"CONNECT":
        return "CONNECT is not served here"
    target = (method or b"", found.get(b":scheme", b""), found.get(b":path", b""), authority)
    if not _TARGET.fullmatch(b"\n".join(target)):
        return "a request needs a :method, :scheme and :path, and a host alone as its :authority"
    hosts = {value.lower() for name, value in block.fields if name == b"host"}
    if hosts and (len(hosts) > 1 or (b":authority" in found and authority.lower() not in hosts)):
        return ":authority and host do not agree"
    return None


def reply_fault(block: Block) -> str | None:
    """What is malformed in a reply's pseudo-fields (section 8.3.2); the block itself has no error."""
    fields = block.fields
    if not fields or fields[0][0] != b":status" or (len(fields) > 1 and fields[1][0].startswith(b":")):
        return "a reply has the pseudo-field :status, and no other"
    status = fields[0][1]
    if not _STATUS.fullmatch(status):
        return ":status is not a number of three digits"
    return "status 101 switches to another protocol" if status == b"101" else None  # section 8.6


def trailer_fault(block: Block) -> str | None:
    """Trailers have no pseudo-fields (section 8.1)."""
    return "its trailers have pseudo-fields" if block.fields and block.fields[0][0].startswith(b":") else None


def _first_fault(fields: list[Field]) -> str:
    """What is malformed wherever a block stands."""
    for name, value in fields:
        shown = name[:40]
        if not _ONE_NAME.fullmatch(name):
            return f"the field name {shown!r} is not in lower case, or no name"
        if not is_value(value):
            return f"the value of {shown.decode()} has a character that is not allowed"
        if _ONE_OF_CONNECTIONS.match(name + b"\n" + value + b"\n"):
            return f"the field {shown.decode()} belongs to an HTTP/1.1 connection"
    return "a pseudo-field stands after other fields"
