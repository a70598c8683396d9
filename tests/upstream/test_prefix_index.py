"""The index of prompt prefixes, and the choice of an endpoint by it."""

from __future__ import annotations

import random
import subprocess
import sys
from collections import Counter, deque
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.config.engine_specs import PrefixSpec
from gateway.upstream.prefix_index import PrefixIndex


@dataclass
class Server:
    url: str
    in_flight: int = 0
    others: int = 0


def servers(*busy: int) -> list[Server]:
    """http://e0 and so on, with these numbers of requests in flight."""
    return [Server(f"http://e{number}", requests) for number, requests in enumerate(busy)]


def index(**options: Any) -> PrefixIndex:
    """An index with blocks of 4 bytes, so that prompts are readable."""
    return PrefixIndex(PrefixSpec(**{"block_bytes": 4, "imbalance": 4, **options}))


def choose(it: PrefixIndex, among: list[Server], prompt: bytes, session: str | None = None, now: float = 1.0) -> str:
    return it.choose(among, session, prompt, now).url


def seen(it: PrefixIndex, url: str, prompt: bytes, now: float = 1.0) -> None:
    """Record a prompt for one endpoint."""
    assert it.choose([Server(url)], None, prompt, now).url == url


CHOICES = [
    # the requests in flight, the prompt, the choice: e0 has seen "aaaabbbbcccc", e1 "aaaabbbb", e2 "xxxx"
    ((0, 0, 0), b"aaaabbbbcccc", "e0"),
    ((3, 0, 0), b"aaaabbbbcccc", "e0"),  # slightly busier is acceptable
    ((4, 0, 0), b"aaaabbbbcccc", "e1"),  # much busier is not: the next longest prefix wins
    ((4, 4, 0), b"aaaabbbbcccc", "e2"),
    ((12, 9, 9), b"aaaabbbbcccc", "e0"),
    ((14, 9, 9), b"aaaabbbbcccc", "e1"),  # 9 * 1.5 = 13.5
    ((0, 1, 0), b"aaaabbbbddddeeee", "e0"),  # equal prefixes: the less busy one
    ((1, 0, 0), b"aaaabbbbddddeeee", "e1"),
    ((1, 0, 0), b"aaaa" + 3 * b"ffff", "e1"),  # a quarter of the prompt is enough, and both have it
    ((2, 2, 1), b"xxxx", "e2"),
    ((1, 1, 2), b"xxxx" + 3 * b"ffff", "e2"),
    ((0, 1, 2), b"xxxx" + 4 * b"ffff", "e0"),  # less is not enough
    ((2, 1, 2), b"zzzz", "e1"),  # unknown prompt: the least busy one
    ((2, 1, 2), b"aaa", "e1"),  # shorter than a block: the least busy one
    ((2, 1, 2), b"", "e1"),
    ((1, 0, 0), b"baaabbbbcccc", ""),  # a different first block makes a different prompt
]


@pytest.mark.parametrize("busy, prompt, chosen", CHOICES)
def test_the_longest_prefix_that_is_not_too_busy(busy: tuple[int, ...], prompt: bytes, chosen: str) -> None:
    """A prompt goes to the endpoint with its longest prefix, unless that one is much busier or the prefix is a small
    part."""
    it = index()
    seen(it, "http://e0", b"aaaabbbbcccc")
    seen(it, "http://e1", b"aaaabbbb")
    seen(it, "http://e2", b"xxxx")
    found = choose(it, servers(*busy), prompt)
    assert found == f"http://{chosen}" if chosen else found != "http://e0"


def test_what_follows_a_prefix_is_counted() -> None:
    """Requests and their blocks are counted, and of these the requests that went where their prompt's beginning was
    seen, with the blocks that were."""
    it = index()
    among = servers(0, 0)
    seen(it, "http://e0", b"aaaabbbbcccc")
    assert choose(it, among, b"aaaabbbbdddd") == "http://e0"
    choose(it, among, b"zzzz")
    assert (it.num_requests, it.num_followed) == (3, 1)
    assert (it.num_blocks, it.num_followed_blocks) == (7, 2)


def test_others_requests_count() -> None:
    """Requests of other gateways at an endpoint count like the worker's own."""
    it, among = index(), servers(0, 0)
    seen(it, "http://e0", b"aaaabbbb")
    among[0].others = 4
    assert choose(it, among, b"aaaabbbb") == "http://e1"


def test_a_memoryview_is_as_good() -> None:
    """A prompt may be a slice of a larger buffer."""
    it = index()
    seen(it, "http://e1", b"aaaabbbb")
    body = bytearray(b'{"prompt":"aaaabbbb"}')
    assert it.choose(servers(0, 0, 0), None, memoryview(body)[11:-2], 1.0).url == "http://e1"


def test_what_stands_behind_max_blocks_decides_nothing() -> None:
    """Only the first `max_blocks` blocks of a prompt count."""
    it = index(max_blocks=2)
    seen(it, "http://e0", b"aaaabbbbcccc")
    assert len(it) == 2
    seen(it, "http://e1", b"aaaabbbbdddd")
    assert choose(it, servers(1, 0), b"aaaabbbbcccc") == "http://e1"


def test_equal_endpoints_draw_lots() -> None:
    """New prompts spread over idle endpoints; each worker makes the same choice, by the session where there is one."""
    among = servers(0, 0, 0)
    prompts = [b"%04d" % number for number in range(300)]
    one, other = index(), index()
    drawn = [choose(one, among, prompt) for prompt in prompts]
    assert drawn == [choose(other, among, prompt) for prompt in prompts]
    assert min(Counter(drawn).values()) > 70
    by_session = [choose(index(), among, prompt, "session-1") for prompt in prompts]
    assert len(set(by_session)) == 1
    sessions = Counter(choose(index(), among, b"new prompt", f"session-{number}") for number in range(300))
    assert min(sessions.values()) > 70


def test_lots_are_drawn_for_what_is_new() -> None:
    """Prompts with a common beginning spread too, whatever this worker has seen of that beginning."""
    among = servers(0, 0, 0)
    prompts = [b"beginning..." + b"%012d" % number for number in range(300)]
    one, other = index(), index()
    for it in (one, other):
        for server in among:
            seen(it, server.url, b"beginning...")
    drawn = [choose(one, among, prompt) for prompt in prompts]
    assert min(Counter(drawn).values()) > 70
    assert drawn == [choose(other, among, prompt) for prompt in prompts]


def test_lots_are_the_same_in_every_process() -> None:
    """The choice does not depend on a process's hash seed."""
    program = (
        "from tests.upstream.test_prefix_index import *\n"
        "print(*[choose(index(), servers(0, 0, 0, 0), b'%04d' % number) for number in range(40)])"
    )
    output = {
        subprocess.run(
            [sys.executable, "-c", program], capture_output=True, check=True, env={"PYTHONHASHSEED": seed}
        ).stdout
        for seed in ("1", "2")
    }
    assert len(output) == 1


def test_blocks_that_are_not_seen_again_go() -> None:
    """A block expires after `ttl`, and after half of it at the earliest; each use renews it."""
    it, among = index(ttl=100.0), servers(1, 0)
    seen(it, "http://e0", b"aaaa", now=1000.0)
    assert choose(it, among, b"aaaa", now=1050.0) == "http://e0"
    assert choose(it, among, b"aaaa", now=1100.0) == "http://e0"
    assert choose(it, among, b"aaaa", now=1201.0) == "http://e1"


def test_after_a_long_silence_all_is_forgotten() -> None:
    """Blocks expire without any lookups in between."""
    it = index(ttl=100.0)
    seen(it, "http://e0", b"aaaabbbb", now=1000.0)
    assert choose(it, servers(1, 0), b"aaaabbbb", now=1100.0) == "http://e1"
    assert len(it) == 2  # e1's


def test_memory_is_bounded() -> None:
    """The index holds no more entries than the rules allow, and the latest stay."""
    it, among = index(max_entries=1000, max_blocks=64), servers(0, 0, 0, 0)
    for number in range(5000):
        prompt = random.Random(number).randbytes(4 * 20)
        it.choose(among, None, prompt, 1.0)
        assert len(it) <= 1000
    assert len(it) >= 500
    chosen = it.choose(among, None, prompt, 1.0)
    assert it.choose([*servers(0, 0), chosen], None, prompt, 1.0) is chosen


@pytest.mark.parametrize("max_entries", [1, 2, 3, 7])
def test_a_prompt_longer_than_the_memory(max_entries: int) -> None:
    """A prompt adds no more blocks than the index may hold."""
    it = index(max_entries=max_entries)
    for letter in b"abcdefgh":
        choose(it, servers(0, 0), bytes([letter]) * 400)
        assert len(it) <= max(2, max_entries)


def test_endpoints_that_went_away_are_forgotten() -> None:
    """Removing an endpoint frees its entries; one that returns under the same name starts empty."""
    it = index()
    seen(it, "http://e0", b"aaaabbbb")
    seen(it, "http://e1", b"cccc")
    it.keep(["http://e1", "http://e2"])
    assert len(it) == 1
    assert choose(it, servers(1, 1, 0), b"aaaabbbb") == "http://e2"
    assert repr(it) == "<PrefixIndex: 3 of 200000 entries>"
    for _ in range(1000):
        seen(it, "http://e1", b"dddd")
        it.keep([])
    assert len(it) == 0


PROMPTS = st.lists(st.sampled_from([b"aaaa", b"bbbb"]), max_size=5).map(b"".join)


@given(st.lists(st.tuples(PROMPTS, st.integers(0, 2)), max_size=20), PROMPTS)
def test_the_depth_is_that_of_comparing_prompts(history: list[tuple[bytes, int]], prompt: bytes) -> None:
    """The binary search finds the same depth as a comparison with every earlier prompt."""
    it = index(max_entries=10_000)
    for earlier, number in history:
        seen(it, f"http://e{number}", earlier)
    shared = [
        max((_shared(earlier, prompt) for earlier, at in history if at == number), default=0) for number in range(3)
    ]
    longest = max(shared)
    found = choose(it, servers(0, 0, 0), prompt)
    if longest and longest >= len(prompt) // 4 / 4:
        assert shared[int(found[-1])] == longest


def _shared(one: bytes, other: bytes) -> int:
    """The number of leading blocks that two prompts share."""
    blocks = [(one[at : at + 4], other[at : at + 4]) for at in range(0, min(len(one), len(other)), 4)]
    return next((number for number, (a, b) in enumerate(blocks) if a != b), len(blocks))


class Fleet:
    """Four engines that each cache the prefixes of the last 16 conversations, and keep requests in flight for a
    while."""

    def __init__(self) -> None:
        self.servers = servers(0, 0, 0, 0)
        self.caches: dict[str, dict[int, None]] = {server.url: {} for server in self.servers}
        self.running: deque[Server] = deque()
        self.served: Counter[str] = Counter()
        self.hits = 0
        self.widest = 0

    def send(self, conversation: int, server: Server) -> None:
        cache = self.caches[server.url]
        self.hits += conversation in cache
        cache.pop(conversation, None)
        cache[conversation] = None
        if len(cache) > 16:
            del cache[next(iter(cache))]
        self.served[server.url] += 1
        server.in_flight += 1
        self.running.append(server)
        if len(self.running) > 24:
            self.running.popleft().in_flight -= 1
        loads = [each.in_flight for each in self.servers]
        self.widest = max(self.widest, max(loads) - min(loads))


def test_a_fleet_finds_its_prefixes() -> None:
    """With 50 conversations on 4 engines that cache 16 each, over 85 % of the prompts hit a cache, against less than 60
    % by random choice; and no engine is much busier than another."""
    chance = random.Random(5)
    preamble = chance.randbytes(2 * 256)
    texts = [preamble + chance.randbytes(8 * 256) for _ in range(50)]
    it, by_prefix, by_chance = PrefixIndex(PrefixSpec()), Fleet(), Fleet()
    num_requests = 4000
    for number in range(num_requests):
        conversation = min(int(chance.expovariate(0.06)), 49)  # some are more frequent than others
        texts[conversation] += chance.randbytes(chance.randrange(300)) if len(texts[conversation]) < 20_000 else b""
        prompt = texts[conversation] + chance.randbytes(100)
        by_prefix.send(conversation, it.choose(by_prefix.servers, None, prompt, float(number) / 100))
        by_chance.send(conversation, chance.choice(by_chance.servers))
    assert by_prefix.hits > 0.85 * num_requests
    assert by_chance.hits < 0.6 * num_requests
    # A request that ends at the least busy one while others are at the limit widens the gap slightly.
    assert by_prefix.widest <= PrefixSpec().imbalance + 4
    assert min(by_prefix.served.values()) > 0.15 * num_requests
