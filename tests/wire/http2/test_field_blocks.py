"""Header blocks against the `hpack` library, in both directions."""

from collections.abc import Iterator

import pytest
from hpack import Decoder, Encoder, HPACKError
from hpack.struct import HeaderTuple, NeverIndexedHeaderTuple
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gateway.wire.http2 import fields as fields_module
from gateway.wire.http2.field_decoder import FieldDecoder, OwnNames
from gateway.wire.http2.field_table import TABLE_BYTES
from gateway.wire.http2.fields import Block, Field, is_value, reply_fault, request_fault, trailer_fault
from gateway.wire.http2.frames import ErrorCode, Http2Error
from gateway.wire.http2.hpack import CachedHeaders, FieldEncoder, literals

# Few names and values, so that table lookups hit; some are long enough to evict others.
NAMES = st.sampled_from([b":path", b":status", b"x-a", b"cookie", b"date", b"", b"x" * 200, b"te", b":method"])
VALUES = st.one_of(
    st.sampled_from(
        [b"", b"/", b"200", b"GET", b"v" * 126, b"v" * 127, b"v" * 128, b"w" * 2000, b"u" * 5000, b"\xff\0"]
    ),
    st.binary(max_size=300),
)
FIELDS = st.lists(st.tuples(NAMES, VALUES), max_size=6)
SIZES = st.sampled_from([None, None, None, 0, 33, 100, 600, 4095, 4096])


VOLATILE = st.sampled_from([frozenset(), frozenset({b"x-a", b"date"}), frozenset({b"a", b"cookie", b""})])


def apart(fields: list[Field], volatile: frozenset[bytes]) -> tuple[list[Field], list[list[Field]]]:
    """The fields in order, and each volatile name's fields in order: these may be moved behind the others."""
    return (
        [field for field in fields if field[0] not in volatile],
        [[field for field in fields if field[0] == name] for name in sorted(volatile)],
    )


@settings(max_examples=150, deadline=None)
@given(VOLATILE, st.lists(st.tuples(FIELDS, st.booleans(), st.sampled_from(["index", "never"]), SIZES), max_size=12))
def test_what_hpack_writes(volatile: frozenset[bytes], blocks: list[tuple[list[Field], bool, str, int | None]]) -> None:
    """Blocks with and without Huffman code, indexed and never indexed, between changes of the table's size, decode to
    the fields that were encoded. Each is decoded twice, since the decoder caches blocks."""
    encoder, decoder, reference = Encoder(), FieldDecoder(1 << 20, OwnNames(volatile.__contains__)), Decoder(1 << 20)
    for fields, huffman, kind, size in blocks:
        if size is not None:
            encoder.header_table_size = size
        for _ in range(2):
            made = HeaderTuple if kind == "index" else NeverIndexedHeaderTuple
            block = encoder.encode([made(*field) for field in fields], huffman=huffman)
            assert apart(decoder.decode(block).fields, volatile) == apart(Block(fields).fields, volatile)
            assert [tuple(field) for field in reference.decode(block, raw=True)] == fields
        entries = len(reference.header_table.dynamic_entries)
        assert repr(decoder).startswith(
            f"<FieldDecoder {entries} entries, {reference.header_table._current_size} bytes"
        )


PIECES = st.one_of(
    st.sampled_from(
        [
            *(b"\x82", b"\xbe", b"\xbf", b"\xc0", b"\x40\x01a\x01b", b"\x00\x01a\x01b", b"\x10\x01a\x01b", b"\x20"),
            *(b"\x3f\x45", b"\x3f\xe1\x1f", b"\x7e\x01z", b"\x41\x00", b"\x0f\x2f\x01q", b"\xff\x00", b"\xff\x01"),
            *(b"\x40\x81\x1f\x81\x1f", b"\x00\x7f\x00" + bytes(127) + b"\x00", b"\x04\x82\x60\x7f", b"\x7f\x80\x01a"),
        ]
    ),
    st.binary(max_size=6),
)


@settings(max_examples=300, deadline=None)
@given(VOLATILE, st.lists(st.lists(PIECES, max_size=8).map(b"".join), max_size=5), st.sampled_from([100, 1 << 16]))
@example(frozenset(), [b"\x40\x01a\x01b", b"\xbe", b"\x20", b"\xbe"], 1 << 16)
@example(frozenset(), [b"\x40\x01a\x01b", b"\xbe", b"\x40\x01c\x01d", b"\xbe"], 1 << 16)
@example(frozenset({b"a"}), [b"\x40\x01a\x01b", b"\x82\x00\x01a\x01c\xbe", b"\x82\x00\x01a\x01d\xbe"], 1 << 16)
@example(frozenset({b"a"}), [b"\x82\x00\x01a\x01b", b"\x82\x82\x00\x01a\x01b"], 100)
@example(frozenset(), [b"\x82" * 3], 100)
def test_any_block(volatile: frozenset[bytes], blocks: list[bytes], max_list_bytes: int) -> None:
    """For any bytes the decoder and the library yield the same fields, or both reject them."""
    decoder, reference = FieldDecoder(max_list_bytes, OwnNames(volatile.__contains__)), Decoder(max_list_bytes)
    for block in blocks:
        try:
            expected = [tuple(field) for field in reference.decode(block, raw=True)]
        except HPACKError:
            with pytest.raises(Http2Error) as refused:
                decoder.decode(block)
            assert refused.value.code in (ErrorCode.COMPRESSION_ERROR, ErrorCode.ENHANCE_YOUR_CALM)
            return
        assert apart(decoder.decode(block).fields, volatile) == apart(Block(expected).fields, volatile)


def test_blanks_around_values() -> None:
    """Blanks around a value are removed in replies, kept in gRPC calls and malformed in other requests; an error
    message keeps them percent-encoded."""
    block = Block([(b":status", b"200"), (b"a", b" b\t"), (b"grpc-message", b"not\tso. ")])
    assert block.fields[1:] == [(b"a", b"b"), (b"grpc-message", b"not\tso.%20")]
    assert (block.error, block.fault(reply_fault), block.fault(trailer_fault) is None) == (None, None, False)
    opening = [(b":method", b"POST"), (b":scheme", b"http"), (b":path", b"/")]
    assert Block([*opening, (b"a", b"b")]).fault(request_fault) is None
    assert Block([*opening, (b"a", b"b ")]).fault(request_fault) == "a value has blanks around it"
    opening.append((b"content-type", b"application/grpc"))
    call = Block([*opening, (b"a", b" b\t")])
    assert (call.fault(request_fault), call.fields[-1], call.has_blanks) == (None, (b"a", b" b\t"), True)


@pytest.mark.parametrize(
    "field",
    [
        (b":path", b"/ "),
        (b":authority", b" host"),
        (b":scheme", b"http "),
        (b"content-length", b"5 "),
        (b"content-type", b" application/grpc"),
        (b"transfer-encoding", b" chunked"),
        (b"te", b" gzip"),
        (b"a ", b"b"),
        (b"a", b" b\n"),
        (b"a", b" \x00"),
        (b"a", b"\x7f "),
    ],
)
def test_blanks_hide_nothing(field: Field) -> None:
    """Metadata of calls may have blanks around it; fields that decide on the call, and malformed ones, may not."""
    call = {b":method": b"POST", b":scheme": b"http", b":path": b"/", b"content-type": b"application/grpc"}
    block = Block(sorted({**call, **dict([field])}.items()))
    assert block.fault(request_fault) is not None


def test_volatile_metadata_with_blanks() -> None:
    """A decoder that caches blocks by their steady fields marks those whose other fields have blanks."""
    decoder = FieldDecoder(1 << 16, OwnNames(frozenset({b"x-request-id"}).__contains__))
    steady = b"\x83\x86\x84" + literals([(b"content-type", b"application/grpc")])
    for value in [b"a", b" b", b"c", b" b"] * 3:
        block = decoder.decode(steady + literals([(b"x-request-id", value)]))
        assert (block.fault(request_fault), block.fields[-1][1]) == (None, value)
        assert block.has_blanks == value.startswith(b" ")


def test_a_block_without_its_volatile_fields_is_remembered() -> None:
    """An id that changes each time leaves the rest of a block cached; a malformed id is still detected."""
    decoder = FieldDecoder(1 << 16, OwnNames(frozenset({b"x-request-id"}).__contains__))
    steady = b"\x83\x86\x84" + literals([(b"x-a", b"1")])
    base = decoder.decode(steady + literals([(b"x-request-id", b"0")])).base
    assert base is not None and base.fields[-1] == (b"x-a", b"1")
    for number in range(100):
        own = [(b"x-request-id", b"%d" % number)]
        block = decoder.decode(b"\x83\x86\x84" + literals(own) + literals([(b"x-a", b"1")]))
        assert block.base is base
        assert (block.own, block.fields, block.error) == (own, base.fields + own, None)
        assert block.list_bytes == Block(block.fields).list_bytes
    assert decoder.decode(steady + literals([(b"x-request-id", b"a\nb")])).error is not None
    behind = decoder.decode(b"\x83\x86" + literals([(b"x-request-id", b"0")]) + b"\x84" + literals([(b"x-a", b"1")]))
    assert behind.error == "a pseudo-field stands after other fields"
    with pytest.raises(Http2Error, match="too long"):
        decoder.decode(steady + literals([(b"x-request-id", b"x" * (1 << 16))]))


# The parts of a block: fields of a table, literals with a volatile value, and a literal without one.
SKELETONS = st.sampled_from(
    [
        [b"\x83", b"x-id"],
        [b"x-id", b"\x83\x86", b"trace"],
        [b"\x83\x84", b"trace", b"x-a", b"x-id", b"\x86"],
        [b"x-id", b"x-id"],
        [b"\xbe", b"trace"],
        [b"\x40\x01n\x01v", b"x-id"],
    ]
)
SHORT = st.sampled_from(
    [b"", b"1", b"2", b"12", b"34", b"\n", b"\xff", b" 1", b"ab\n", b"x" * 126, b"y" * 127, b"z" * 127]
)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(SKELETONS, st.lists(SHORT, min_size=3, max_size=3), st.booleans()), max_size=20))
def test_blocks_that_differ_in_a_few_values(steps: list[tuple[list[bytes], list[bytes], bool]]) -> None:
    """Blocks that differ in volatile values, in table size and in Huffman coding decode to the fields, verdict and size
    that the library finds."""
    volatile = frozenset({b"x-id", b"trace"})
    encoder, decoder, reference = Encoder(), FieldDecoder(1 << 16, OwnNames(volatile.__contains__)), Decoder(1 << 16)
    decoder.decode(b"\x40\x01n\x01v")
    reference.decode(b"\x40\x01n\x01v")
    for skeleton, values, huffman in steps:
        received = iter(values)
        pieces = []
        for each in skeleton:
            if each[0] < 0x80 and each[:1] != b"\x40":
                field = NeverIndexedHeaderTuple(each, next(received, b"last"))
                pieces.append(encoder.encode([field], huffman=huffman))
            else:
                pieces.append(each)
        block = b"".join(pieces)
        expected = Block([(name, value) for name, value in reference.decode(block, raw=True)])
        found = decoder.decode(block)
        assert apart(found.fields, volatile) == apart(expected.fields, volatile)
        assert (found.error is None, found.list_bytes) == (expected.error is None, expected.list_bytes)


def test_a_shape_is_recognised() -> None:
    """Blocks with volatile values of the same length share a cached shape from the second one, until the table
    changes."""
    decoder = FieldDecoder(1 << 16, OwnNames(frozenset({b"x-id"}).__contains__))

    def shape(*, first: bytes = b"\x83", id: bytes = b"001") -> object:
        return decoder.decode(first + literals([(b"x-id", id)])).shape

    shapes = [shape(id=b"%03d" % number) for number in range(4)]
    assert shapes[0] is None and shapes[1] is not None and shapes[1:] == [shapes[1]] * 3
    assert shape(first=b"\x82") is None
    assert shape() is shapes[1]
    decoder.decode(b"\x40\x01n\x01v")
    assert shape() is None
    assert shape() not in (None, shapes[1])
    huffman = Encoder().encode([NeverIndexedHeaderTuple(b"x-id", b"007")])
    assert [decoder.decode(b"\x83" + huffman).shape for _ in range(3)] == [None] * 3


def test_blocks_that_change_the_table_each_time() -> None:
    """grpc-go and grpc-java add each id and deadline to the table. Such blocks still share one base, wherever the
    volatile fields stand behind the pseudo-fields, and whichever entries are evicted."""
    volatile = frozenset({b"x-id", b"grpc-timeout"})
    encoder, decoder, reference = Encoder(), FieldDecoder(1 << 16, OwnNames(volatile.__contains__)), Decoder(1 << 16)
    bases = set()
    for number in range(300):
        own = [(b"grpc-timeout", b"%du" % number), (b"x-id", b"%030d" % number)]
        fields = [(b":method", b"POST"), (b":path", b"/a"), own[0], (b"te", b"trailers"), own[1], (b"x-a", b"1")]
        written = encoder.encode(fields)
        block = decoder.decode(written)
        bases.add(block.base)
        assert [tuple(field) for field in reference.decode(written, raw=True)] == fields
        assert (block.own, block.error, block.list_bytes) == (own, None, Block(fields).list_bytes)
        assert block.fields == [fields[0], fields[1], fields[3], fields[5], *own]
    assert len(bases) == 1 and None not in bases
    same = [decoder.decode(encoder.encode([(b":method", b"GET"), (b"n", b"%d" % (each % 2))])) for each in range(6)]
    assert same[0].base is None and same[0].fields == same[2].fields

    def changing(*fields: Field) -> Block:
        return decoder.decode(b"\x83" + b"".join(b"\x40%c%b%c%b" % (len(n), n, len(v), v) for n, v in fields))

    assert changing((b"x-id", b"1"), (b":path", b"/")).error == "a pseudo-field stands after other fields"
    assert (
        changing((b":path", b"/"), (b"x-id", b"a\nb")).error == "the value of x-id has a character that is not allowed"
    )
    assert changing((b"n", b"1"), (b"x-id", b"1"), (b"x-id", b"2")).own == [(b"x-id", b"1"), (b"x-id", b"2")]


def test_blocks_that_change_the_table_do_not_fill_the_memory() -> None:
    """A client that changes its steady fields each time fills a small bounded cache without long entries, and an entry
    that is repeated too often is rejected cheaply."""
    decoder = FieldDecoder(1 << 16, OwnNames(frozenset({b"x-id"}).__contains__))
    for number in range(500):
        decoder.decode(b"\x40\x01n\x04%04d" % number)
        decoder.decode(b"\x40\x01n\x04%04d" % number + b"\xbe" * 1000)
        decoder.decode(b"\x40\x01n\x7f\xa1\x26" + b"v" * 5024)
    assert 0 < len(decoder._bases) <= 16
    assert max(len(base.fields) for base in decoder._bases.values()) <= 64
    assert max(base.list_bytes for base in decoder._bases.values()) <= 4096


@pytest.mark.parametrize("name", [b"x-id", b"x-no"])
@pytest.mark.parametrize("number", [30, 1000, 16_000])
def test_an_entry_that_is_named_again_and_again(monkeypatch: pytest.MonkeyPatch, name: bytes, number: int) -> None:
    """One byte references a 4 KiB entry: the decoder validates no more of them than the limit allows."""
    looked_at = 0

    def counted(value: bytes) -> object:
        nonlocal looked_at
        looked_at += len(value)
        return is_value(value)

    monkeypatch.setattr(fields_module, "is_value", counted)
    decoder = FieldDecoder(1 << 16, OwnNames(frozenset({b"x-id"}).__contains__))
    decoder.decode(b"\x40\x04%b\x7f\x89\x1e" % name + b"v" * 3976)
    looked_at = 0
    with pytest.raises(Http2Error, match="too long"):
        decoder.decode(b"\x40\x01n\x01v" + b"\xbf" * number)
    assert looked_at <= 1 << 16


def test_shapes_do_not_fill_the_memory() -> None:
    """Values that grow with each block, and steady fields that change, fill only a small bounded cache."""
    decoder = FieldDecoder(1 << 16, OwnNames(frozenset({b"x-id"}).__contains__))
    for size in range(2000):
        for _ in range(3):
            block = decoder.decode(b"\x83" + literals([(b"x-id", b"x" * size)]))
            assert block.own == [(b"x-id", b"x" * size)]
    assert 0 < len(decoder._shapes) <= 16
    for number in range(2000):
        for _ in range(3):
            decoder.decode(b"\x83" + literals([(b"x-id", b"x"), (b"n", b"%04d" % number)]))
    assert sum(map(len, decoder._shapes.values())) <= 16 + 4
    for size in range(1, 200):  # blocks too long to be cached, each with a short value
        for _ in range(3):
            assert decoder.decode(b"\x83" * 900 + literals([(b"x-id", b"x" * size)])).shape is None


def test_shapes_of_one_length() -> None:
    """A client that alternates between two shapes hits the cache for both; changing steady fields do not fill the
    cache."""
    decoder = FieldDecoder(1 << 16, OwnNames(frozenset({b"x-id"}).__contains__))

    def shape(path: bytes, number: int) -> object:
        return decoder.decode(b"\x83" + path + literals([(b"x-id", b"%03d" % number)])).shape

    both = [shape(path, number) for number, path in enumerate([b"\x84", b"\x85"] * 5)]
    assert both[:2] == [None, None] and None not in both[2:4] and both[4:] == both[2:4] * 3
    assert [shape(literals([(b"n", b"%03d" % number)]), 1) for number in range(200)] == [None] * 200
    assert [shape(path, 1) for path in (b"\x84", b"\x85")] == both[2:4]
    many = [shape(literals([(b"n", b"%d" % (number % 7))]), 1) for number in range(700)]
    assert sum(each is not None for each in many) > 300
    assert len(set(map(id, many))) < 100  # fewer than one for each block


def test_a_block_is_remembered_until_the_table_changes() -> None:
    """A repeated block is the same object; after an insertion its index refers to another field."""
    decoder = FieldDecoder(1 << 16)
    decoder.decode(b"\x40\x01a\x01b")
    block = decoder.decode(b"\xbe")
    assert block.fields == [(b"a", b"b")]
    block.note = "read"
    assert decoder.decode(b"\xbe") is block
    assert decoder.decode(b"\x20\x3f\xe1\x1f\x82").fields == [(b":method", b"GET")]  # empties the table
    with pytest.raises(Http2Error, match="malformed header block"):
        decoder.decode(b"\xbe")


def test_blocks_in_use_stay_remembered() -> None:
    """Blocks that occur once do not evict a block that recurs."""
    decoder = FieldDecoder(1 << 16)
    often = decoder.decode(b"\x83\x86\x84")
    for number in range(1000):
        decoder.decode(literals([(b"x-request-id", b"%d" % number)]))
        assert decoder.decode(b"\x83\x86\x84") is often
    known = int(repr(decoder).split(" blocks known")[0].rsplit(" ", 1)[1])
    assert known <= 128


STEADIES = [
    CachedHeaders([(b":status", b"200"), (b"content-type", b"application/grpc")]),
    CachedHeaders([(b":method", b"POST"), (b":path", b"/a"), (b"x-a", b"1")]),
    CachedHeaders([(b"x-a", b"1"), (b"x-b", b"2" * 300)]),
    CachedHeaders([(b"x-a", b"1"), (b"x-a", b"1"), (b"x-c", b"")]),
    CachedHeaders([(b"long", b"l" * 3000)]),
    CachedHeaders([(b"longer", b"l" * 3900)]),
    CachedHeaders([(b"longest", b"l" * 9000)]),
    CachedHeaders([]),
]


@settings(max_examples=150, deadline=None)
@given(
    st.lists(
        st.one_of(
            st.tuples(st.sampled_from(STEADIES), FIELDS),
            st.tuples(st.just(None), st.sampled_from([0, 10, 40, 200, 4095, 4096, 10_000])),
        ),
        max_size=16,
    )
)
def test_what_hpack_reads(steps: list[tuple[CachedHeaders | None, object]]) -> None:
    """The library decodes every encoded block, through all changes of the table's size, and the table stays within its
    limit."""
    encoder, decoder = FieldEncoder(), Decoder(1 << 20)
    allowed = decoder.max_allowed_table_size
    for steady, given_ in steps:
        if steady is None:
            assert isinstance(given_, int)
            encoder.resize(given_)
            allowed = given_
            decoder.max_allowed_table_size = given_
            continue
        passing = [field for field in given_ if field[0]]  # type: ignore[attr-defined]
        block = encoder.encode(steady, literals(passing, secret=bool(passing)))
        assert [tuple(field) for field in decoder.decode(block, raw=True)] == [*steady.fields, *passing]
        assert decoder.header_table._current_size <= min(allowed, TABLE_BYTES)


def test_what_comes_again_is_short() -> None:
    """A field costs its length the first two times and one byte afterwards; a field that changes is never indexed."""
    encoder, decoder = FieldEncoder(), Decoder()
    sizes = []
    for number in range(4):
        block = encoder.encode(STEADIES[1], literals([(b"x-request-id", b"%d" % number)]))
        sizes.append(len(block))
        decoder.decode(block)
    assert sizes[2] == sizes[3] == 3 + len(literals([(b"x-request-id", b"1")]))
    assert len(decoder.header_table.dynamic_entries) == 2


class CountedFields(tuple[Field, ...]):
    """Counts how often they are read."""

    reads = 0

    def __iter__(self) -> Iterator[Field]:
        CountedFields.reads += 1
        return super().__iter__()


@pytest.mark.parametrize("num_blocks", [5, 40, 200], ids=["few", "many", "without-room"])
def test_many_blocks_that_come_again(num_blocks: int) -> None:
    """Blocks of many routes: the library reads them; few of their fields get entries, since each new one changes all
    indices; after a few times each block comes from the cache."""
    encoder, decoder = FieldEncoder(), Decoder()
    steadies = [
        CachedHeaders([(b":status", b"200"), (b"a", b"%d" % number), (b"b", b"%d" % number), (b"via", b"1.1 gateway")])
        for number in range(num_blocks)
    ]
    for steady in steadies:
        steady.fields = CountedFields(steady.fields)
    for _ in range(4):
        for steady in steadies:
            block = encoder.encode(steady)
            assert [tuple(field) for field in decoder.decode(block, raw=True)] == [*steady.fields]
    assert min(2 * num_blocks, 16) <= len(decoder.header_table.dynamic_entries) <= 18
    CountedFields.reads = 0
    for steady in steadies:
        encoder.encode(steady)
    assert not CountedFields.reads


def test_secrets_are_never_indexed() -> None:
    """RFC 7541 section 7.1.3: secret fields are encoded as never indexed, which binds every intermediary."""
    [field] = Decoder().decode(literals([(b"authorization", b"Bearer a")], secret=True), raw=True)
    assert isinstance(field, NeverIndexedHeaderTuple)


NAME = st.one_of(
    st.sampled_from([b"a", b":path", b"te", b"connection", b":", b"", b"A", b"a b", b"a\nb", b"a:b", b"host"]),
    st.binary(max_size=4),
)
VALUE = st.one_of(
    st.sampled_from([b"", b"a", b" a", b"a ", b"a\t", b"a b", b"a\nb", b"\n", b"a\r", b"\0", b"trailers", b"\xff"]),
    st.binary(max_size=6),
)


def has_fault(fields: list[Field]) -> bool:
    """The straightforward check (RFC 9113 sections 8.2.1, 8.2.2, 8.3)."""
    token = b"!#$%&'*+-.^_`|~0123456789abcdefghijklmnopqrstuvwxyz"
    regular = False
    for name, value in fields:
        bare = name[1:] if name.startswith(b":") else name
        if not bare or any(byte not in token for byte in bare) or (name[:1] == b":" and regular):
            return True
        regular = regular or name[:1] != b":"
        if any((byte < 0x20 and byte != 9) or byte == 0x7F for byte in value) or value != value.strip(b" \t"):
            return True
        if name in (b"connection", b"keep-alive", b"proxy-connection", b"transfer-encoding", b"upgrade"):
            return True
        if name == b"te" and value != b"trailers":
            return True
    return False


@settings(max_examples=300, deadline=None)
@given(st.lists(st.tuples(NAME, VALUE), max_size=4))
@example([])
@example([(b"a", b"b\n"), (b"c", b"d")])
def test_malformed_fields(fields: list[Field]) -> None:
    """A block has a fault exactly where one of its fields has one."""
    block = Block(fields)
    assert (block.error is not None or block.has_blanks) == has_fault(fields)


@pytest.mark.parametrize(
    "fields, why",
    [
        ([(b"X", b"")], "the field name b'X' is not in lower case, or no name"),
        ([(b"n" * 999 + b" ", b"")], f"the field name b'{'n' * 40}' is not in lower case, or no name"),
        ([(b"x", b"a\n")], "the value of x has a character that is not allowed"),
        ([(b"te", b"gzip")], "the field te belongs to an HTTP/1.1 connection"),
        ([(b"a", b""), (b":path", b"/")], "a pseudo-field stands after other fields"),
        ([(b"content-length", b"1, 1")], "content-length is not one number"),
        ([(b"content-length", b"12")], None),
        ([(b"x", b"content-length")], None),
    ],
)
def test_what_is_wrong_is_said(fields: list[Field], why: str | None) -> None:
    """A block's error names its first fault, in text that fits into a log line."""
    block = Block(fields)
    assert block.error == why
    assert block.length == (12 if why is None and fields[0][0] == b"content-length" else None)
