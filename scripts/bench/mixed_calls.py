"""Calls of ModelInfer as many different users send them: no two have the same metadata or the same message.

The users, tenants, sessions and models are those of `mixed`. Connections take turns in how they write header fields
(RFC 7541), because gRPC's three libraries differ: grpc-core (C++, Python) inserts its own fields into the peer's table
and writes metadata as plain literals; grpc-java inserts every field; grpc-go inserts every field in Huffman code.
"""

import random
from collections.abc import Callable, Sequence

from hpack import Encoder

from bench import grpc_messages, mixed
from bench.grpc_frames import Field
from bench.grpc_messages import DEADLINE_SECONDS, INFER_PATH
from gateway.protocol.protobuf import message
from gateway.wire.grpc import framed

# Messages that are written before the load begins, and then sent in turn.
NUM_MESSAGES = 20_000

# Fields in the order in which each library writes them; the metadata of a call stands where None is.
_OF_CORE = ((":path", INFER_PATH), (":authority", ""), *grpc_messages.HEADERS, ("grpc-timeout", ""), None)
_OF_GO = (
    (":path", INFER_PATH),
    (":authority", ""),
    ("content-type", "application/grpc"),
    ("user-agent", "grpc-go/1.71.0"),
    ("te", "trailers"),
    ("grpc-timeout", ""),
    None,
)
_OF_JAVA = (
    (":authority", ""),
    (":path", INFER_PATH),
    ("content-type", "application/grpc"),
    ("te", "trailers"),
    ("user-agent", "grpc-java-netty/1.71.0"),
    None,
    ("grpc-accept-encoding", "gzip"),
    ("grpc-timeout", ""),
)

# Writes the header block of one connection's next call, in their order.
WriteBlock = Callable[[], bytes]


class Users:
    """The metadata of one call after another."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        self._tokens = mixed.tokens()

    def metadata(self) -> list[tuple[str, str]]:
        chance = self._chance
        return [
            ("authorization", f"Bearer {chance.choice(self._tokens)}"),
            ("x-tenant", f"tenant-{chance.randrange(mixed.NUM_TENANTS)}"),
            ("x-session-id", f"session-{chance.randrange(mixed.NUM_SESSIONS)}"),
            ("x-request-id", f"{chance.getrandbits(128):032x}"),
            ("traceparent", f"00-{chance.getrandbits(128):032x}-{chance.getrandbits(64):016x}-01"),
        ]


def block_writer(number: int, port: int, chance: random.Random) -> WriteBlock:
    """The header blocks of a connection, which is one of the three libraries by its number."""
    write = (_core_writer, _go_writer, _java_writer)[number % 3]
    return write(f"127.0.0.1:{port}", Users(chance), chance)


def _core_writer(authority: str, users: Users, chance: random.Random) -> WriteBlock:
    encoder = Encoder()
    own = [field for field in _OF_CORE if field is not None]
    fields = [(name, value or (authority if name == ":authority" else f"{DEADLINE_SECONDS}S")) for name, value in own]
    fields = [(":method", "POST"), (":scheme", "http"), *fields]

    def write() -> bytes:
        block: bytes = encoder.encode(fields, huffman=False)
        return block + b"".join(_plain_literal(_encoded(field)) for field in users.metadata())

    return write


def _go_writer(authority: str, users: Users, chance: random.Random) -> WriteBlock:
    return _inserting_writer(_OF_GO, authority, users, chance, is_huffman=True)


def _java_writer(authority: str, users: Users, chance: random.Random) -> WriteBlock:
    return _inserting_writer(_OF_JAVA, authority, users, chance, is_huffman=False)


def _inserting_writer(
    layout: Sequence[tuple[str, str] | None], authority: str, users: Users, chance: random.Random, *, is_huffman: bool
) -> WriteBlock:
    encoder = Encoder()

    def write() -> bytes:
        # What is left of the deadline when the library writes it, in microseconds.
        left = f"{DEADLINE_SECONDS * 1_000_000 - chance.randrange(1, 900)}u"
        fields = [(":method", "POST"), (":scheme", "http")]
        for field in layout:
            if field is None:
                fields += users.metadata()
            else:
                fields.append((field[0], field[1] or (authority if field[0] == ":authority" else left)))
        block: bytes = encoder.encode(fields, huffman=is_huffman)
        return block

    return write


def _encoded(field: tuple[str, str]) -> Field:
    return field[0].encode(), field[1].encode()


def _plain_literal(field: Field) -> bytes:
    """A field that is not inserted into the peer's table (section 6.2.2)."""
    name, value = field
    return b"\x00%c%b%b%b" % (len(name), name, _length(len(value)), value)


def _length(size: int) -> bytes:
    """The length of a string, up to 16 KB, in seven bits and more (section 5.1)."""
    if size < 127:
        return bytes([size])
    more = size - 127
    return bytes([127, more]) if more < 128 else bytes([127, more & 127 | 128, more >> 7])


def framed_messages(number: int = NUM_MESSAGES, seed: int | None = None) -> list[bytes]:
    """Messages for 40 models with an id and numbers of their own, framed; all have one length."""
    chance = random.Random(seed)

    def made() -> bytes:
        model = grpc_messages.mixed_model(chance.randrange(mixed.NUM_MODELS))
        request = message("inference.ModelInferRequest")(model_name=model, id=f"{chance.getrandbits(64):016x}")
        for index in range(2):
            request.inputs.add(name=f"INPUT{index}", datatype="INT32", shape=[1, 16])
            request.raw_input_contents.append(chance.randbytes(64))
        return framed(request.SerializeToString())

    return [made() for _ in range(number)]
