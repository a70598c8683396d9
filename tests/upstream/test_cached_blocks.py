"""What endpoints have cached, by their events, and the index that takes it over."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from gateway.config.engine_specs import KvEventsSpec, PrefixSpec
from gateway.protocol.kv_events import AllBlocksCleared, BlocksRemoved, BlocksStored, KvEvent, write_batch
from gateway.upstream.cached_blocks import CachedBlocks, TokenizedPrompt
from gateway.upstream.kv_event_stream import KvEventStream
from gateway.upstream.prefix_index import checksums_of
from gateway.upstream.tracked_prefix_index import TrackedPrefixIndex

A, B = "http://a", "http://b"
# Byte blocks 101, 102, 103 end after 2, 4 and 6 tokens; blocks have 2 tokens.
PROMPT = TokenizedPrompt("model", [1, 2, 3, 4, 5, 6, 7], [(101, 2), (102, 4), (103, 6)])


def stored(names: Sequence[int], parent: int | None, tokens: Iterable[int], **fields: Any) -> BlocksStored:
    return BlocksStored(list(names), parent, list(tokens), 2, **fields)


def changes(blocks: CachedBlocks) -> dict[str, dict[int, bool]]:
    return {url: change.cached for url, change in blocks.take_changes().items()}


def joined(*events: tuple[str, KvEvent]) -> CachedBlocks:
    """A tree that knows PROMPT, after these events; no changes are left."""
    blocks = CachedBlocks(1000)
    for url, event in events:
        blocks.apply(url, event)
    blocks.join(PROMPT)
    blocks.take_changes()
    return blocks


def test_stored_tokens_are_the_byte_blocks_of_known_prompts() -> None:
    """A prompt that one endpoint was sent is found at another one, which has its tokens."""
    blocks = joined()
    blocks.apply(A, stored([1, 2], None, [1, 2, 3, 4]))
    assert changes(blocks) == {A: {101: True, 102: True}}
    blocks.apply(B, stored([7], None, [1, 2]))
    assert changes(blocks) == {B: {101: True}}
    blocks.apply(A, stored([3], 2, [5, 6]))
    assert changes(blocks) == {A: {103: True}}


def test_a_prompt_that_comes_after_its_events_is_found() -> None:
    """Whichever comes first: events, or the prompt."""
    blocks = CachedBlocks(1000)
    blocks.apply(A, stored([1, 2], None, [1, 2, 3, 4]))
    assert changes(blocks) == {}
    blocks.join(PROMPT)
    assert changes(blocks) == {A: {101: True, 102: True}}
    blocks.refresh([101, 999])
    assert changes(blocks) == {A: {101: True}}


def test_removed_blocks_take_those_behind_them_along() -> None:
    """A block is of use only with all before it; when the first one is back, so are those behind it."""
    blocks = joined((A, stored([1, 2, 3], None, [1, 2, 3, 4, 5, 6])))
    blocks.apply(A, BlocksRemoved([2]))
    assert changes(blocks) == {A: {102: False, 103: False}}
    blocks.apply(A, stored([2], 1, [3, 4]))
    assert changes(blocks) == {A: {102: True, 103: True}}


def test_a_block_in_two_media_is_cached_until_both_have_removed_it() -> None:
    """Offloaded blocks are on the CPU, too; an event without a medium is about all."""
    blocks = joined()
    for medium in ("GPU", "CPU"):
        blocks.apply(A, stored([1], None, [1, 2], medium=medium))
    blocks.take_changes()
    blocks.apply(A, BlocksRemoved([1], "GPU"))
    assert changes(blocks) == {}
    blocks.apply(A, BlocksRemoved([1], None))
    assert changes(blocks) == {A: {101: False}}


def test_adapters_share_no_blocks() -> None:
    """The same tokens under a LoRA adapter are other blocks."""
    blocks = joined((A, stored([1], None, [1, 2], lora_name="sql")))
    blocks.apply(A, stored([2], None, [1, 2], lora_name="sql"))
    assert changes(blocks) == {}
    blocks.join(PROMPT._replace(model="sql", blocks=[(201, 2)]))
    assert changes(blocks) == {A: {201: True}}


def test_cleared_endpoints_have_nothing() -> None:
    """An engine that starts again, or resets its cache, is empty for the gateway, too; the others stay."""
    blocks = joined((A, stored([1], None, [1, 2])), (B, stored([1], None, [1, 2])))
    blocks.apply(A, AllBlocksCleared())
    found = blocks.take_changes()
    assert list(found) == [A] and found[A].is_cleared
    blocks.apply(A, BlocksRemoved([1]))
    assert changes(blocks) == {}
    blocks.refresh([101])
    assert changes(blocks) == {B: {101: True}}


def test_what_was_stored_before_is_found_by_what_follows_it() -> None:
    """A gateway that starts later than its engines, and cannot have all replayed: a block behind an unknown one is
    where a prompt has its tokens, and the engine has what is before it, until it has evicted what is behind."""
    blocks = joined()
    blocks.apply(A, stored([9], 8, [9, 9]))
    assert changes(blocks) == {} and blocks.num_unplaced == 1
    blocks.apply(A, stored([3], 2, [5, 6]))
    assert changes(blocks) == {A: {101: True, 102: True, 103: True}}
    blocks.apply(A, stored([4], 2, [0, 0]))
    blocks.apply(A, BlocksRemoved([3]))
    assert changes(blocks) == {A: {103: False}}
    blocks.apply(A, BlocksRemoved([4]))
    assert changes(blocks) == {A: {101: False, 102: False}}
    blocks.apply(A, stored([3], 2, [5, 6]))
    assert changes(blocks) == {A: {103: True, 101: True, 102: True}}
    blocks.apply(A, BlocksRemoved([2]))
    assert changes(blocks) == {A: {101: False, 102: False, 103: False}}
    blocks.apply(A, stored([2], 1, [3, 4]))
    assert changes(blocks) == {A: {101: True, 102: True, 103: True}}
    blocks.clear(A)
    blocks.refresh([101, 102, 103])
    assert blocks.take_changes()[A].cached == {}


def test_memory_is_bounded_and_returned() -> None:
    """Prompts go, the oldest first; what engines remove leaves nothing behind."""
    blocks = CachedBlocks(50)
    blocks.apply(A, stored([1], None, [1, 2]))
    for number in range(500):
        blocks.join(TokenizedPrompt("", [number, 0, 1, 2, 3, 4], [(10 * number, 2), (10 * number + 1, 6)]))
        assert len(blocks) <= 50
    for number in range(500):
        blocks.apply(A, stored([1000 + number], None, [7000 + number, 1]))
        assert len(blocks) <= 50
    assert blocks.num_unplaced
    blocks.apply(A, BlocksRemoved([1, *range(1000, 1500)]))
    blocks = CachedBlocks(50)
    blocks.apply(A, stored([1, 2], None, [1, 2, 3, 4]))
    blocks.apply(A, BlocksRemoved([2, 1]))
    assert len(blocks) == 0


def test_what_engines_invent_is_bounded() -> None:
    """Names of one block, adapters, media and sizes of blocks, of which an engine may report any number."""
    blocks = CachedBlocks(50)
    for number in range(1100):
        blocks.apply(A, stored([number], None, [1, 2], medium=f"m{number}"))
        blocks.apply(B, stored([number], None, [1, 2], lora_name=f"l{number}"))
        blocks.apply(B, BlocksStored([0], None, [1], number + 3))
    assert len(blocks) <= 50
    assert max(len(names) for names in blocks._by_hash.values()) <= 50
    assert (len(blocks._roots), len(blocks._sizes)) == (1000, 4)
    assert max(len(places) for each in blocks._roots[""].children.values() for places in each.holders.values()) == 16


def batch(*events: KvEvent) -> bytes:
    return write_batch(0.0, events)


FIRST, SECOND, THIRD = (
    batch(stored([1], None, [1, 2])),
    batch(stored([2], 1, [3, 4])),
    batch(stored([3], 2, [5, 6])),
)
ALL = {101: True, 102: True, 103: True}


def test_lost_batches_are_replayed() -> None:
    """A gap in the numbers is filled by a replay, and what comes twice counts once."""
    blocks, wanted = joined(), []

    def replay(first: int) -> list[tuple[int, bytes]]:
        wanted.append(first)
        return [(number, payload) for number, payload in enumerate([FIRST, SECOND, THIRD]) if number >= first]

    stream = KvEventStream(A, blocks, replay)
    stream.receive(0, FIRST)
    stream.receive(2, THIRD)
    assert wanted == [1] and blocks.num_gaps == 0
    assert changes(blocks) == {A: ALL}


def test_lost_batches_without_a_replay_clear_the_endpoint() -> None:
    """What was missed may have removed anything."""
    blocks = joined()
    stream = KvEventStream(A, blocks, None)
    stream.receive(0, FIRST)
    blocks.take_changes()
    stream.receive(2, batch(AllBlocksCleared()))
    found = blocks.take_changes()
    assert found[A].is_cleared and found[A].cached == {} and blocks.num_gaps == 1
    stream.receive(3, FIRST)
    assert changes(blocks) == {A: {101: True}}


def test_what_an_endpoint_had_before_is_replayed() -> None:
    """A gateway that starts later than its engines learns what they have; the same batches may come again."""
    blocks = joined()
    stream = KvEventStream(A, blocks, lambda first: [(0, FIRST), (1, SECOND)])
    stream.connected()
    stream.receive(1, SECOND)
    stream.receive(2, THIRD)
    assert blocks.num_gaps == 0
    assert changes(blocks) == {A: ALL}


def test_an_engine_that_starts_again_is_empty() -> None:
    """Its numbers begin again, or its connection was lost."""
    blocks = joined()
    stream = KvEventStream(A, blocks, None)
    for number, payload in enumerate([FIRST, SECOND]):
        stream.receive(number, payload)
    blocks.take_changes()
    stream.receive(0, FIRST)
    found = blocks.take_changes()
    assert found[A].is_cleared and found[A].cached == {101: True}
    stream.lost()
    assert blocks.take_changes()[A].is_cleared


def test_an_unreadable_batch_clears_the_endpoint() -> None:
    """What it would have said is unknown; those behind it count again."""
    blocks = joined()
    stream = KvEventStream(A, blocks, None)
    stream.receive(0, FIRST)
    stream.receive(1, b"\xc1")
    found = blocks.take_changes()
    assert found[A].is_cleared and found[A].cached == {}


class Server:
    def __init__(self, url: str) -> None:
        self.url, self.in_flight, self.others = url, 0, 0


def test_the_index_takes_over_what_is_cached() -> None:
    """Evicted blocks lead nowhere any more, blocks of other workers' prompts do, and the counts agree."""
    spec = PrefixSpec(block_bytes=16, events=KvEventsSpec("model"))
    index = TrackedPrefixIndex(spec)
    reports: list[TrackedPrefixIndex] = []
    index.on_seen = reports.append
    body = b'{"prompt": "' + b"x" * 52
    servers: list[Any] = [Server(A), Server(B)]
    first = index.choose(servers, None, memoryview(body)[1:], 1.0).url
    other = {A: B, B: A}[first]
    (seen,) = index.take_seen()
    assert reports == [index] and (seen.body, seen.start) == (body, 1)
    index.choose(servers, None, memoryview(body)[1:], 1.0)
    assert index.take_seen() == []  # it is known
    blocks = CachedBlocks(100)
    prompt = TokenizedPrompt(
        "", [1, 2, 3, 4, 5, 6], list(zip(checksums_of(body[1:], 16, 999), (2, 4, 6), strict=False))
    )
    blocks.apply(first, stored([1, 2, 3], None, prompt.token_ids))
    blocks.join(prompt)
    blocks.apply(first, BlocksRemoved([1]))
    blocks.apply(other, stored([1, 2, 3], None, prompt.token_ids))
    index.apply(blocks.take_changes(), 1.0)
    assert len(index) == 3
    next(server for server in servers if server.url == other).in_flight = 2
    assert index.choose(servers, None, memoryview(body)[1:], 1.0).url == other
    blocks.clear(other)
    index.apply(blocks.take_changes(), 1.0)
    assert len(index) == 0
    assert index.choose(servers, None, memoryview(body)[1:], 1.0).url == first  # the least busy
