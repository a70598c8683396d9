"""Which endpoint has seen the beginning of a prompt, and so has its keys and values cached.

A prompt is cut into blocks of bytes; a block is identified by a checksum of the prompt up to the block's end, so an
endpoint that saw a block saw all blocks before it. The index is a hint: engines evict their caches on their own, and
checksums may collide.

Entries stand in two generations. New ones go into the young generation; when that is full, or half of `ttl` old, it
becomes the old one, and the previous old one is dropped. So an entry that is seen again stays, any other lives between
half of `ttl` and all of it, and none needs a timestamp.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from collections.abc import Set as AbstractSet
from hashlib import blake2b
from math import log
from zlib import crc32

from gateway.config.engine_specs import PrefixSpec
from gateway.upstream.endpoint import Endpoint

# A shorter match is common to many prompts, such as a product's instructions: following it would overload one endpoint.
_LEAST_SHARE = 0.25

_ODD = 0x9E3779B97F4A7C15  # 2^64 / the golden ratio: a product's upper bits depend on all bits of the other number
_MASK = (1 << 64) - 1
_NOTHING: AbstractSet[int] = frozenset()


class PrefixIndex:
    """The blocks that each endpoint of one engine saw; an entry is a block and an endpoint."""

    def __init__(self, spec: PrefixSpec) -> None:
        self.spec = spec
        self._half = max(1, spec.max_entries // 2)
        self._block_bytes = spec.block_bytes
        self._max_bytes = compared_bytes(spec)
        self._young: dict[str, set[int]] = {}  # by the endpoint's URL
        self._old: dict[str, set[int]] = {}
        self._num_young = 0
        self._turn_at = 0.0
        self._lots: dict[str, int] = {}
        # Requests, those that followed their prompts, and the same of blocks
        self.num_requests = self.num_followed = self.num_blocks = self.num_followed_blocks = 0
        self.weights: Mapping[str, float] | None = None  # of endpoints, by URL, relative to their mean; None: all equal

    def __len__(self) -> int:
        return sum(map(len, self._young.values())) + sum(map(len, self._old.values()))

    def __repr__(self) -> str:
        return f"<PrefixIndex: {len(self)} of {self.spec.max_entries} entries>"

    def choose(
        self, endpoints: Sequence[Endpoint], session: str | None, prompt: bytes | memoryview, now: float
    ) -> Endpoint:
        """One of the endpoints (never none), noted as having seen the prompt; `now` is of any monotonic clock, seconds.

        1. Of those not much busier than the least busy one, those that saw most of the prompt, if that is enough of
           it; of them the least busy one.  2. Else the least busy one of all.
        Among equals the session draws the lots, or the first block that is new: every worker draws the same.
        """
        if now >= self._turn_at:
            self._turn(now)
        max_bytes = self._max_bytes
        data = prompt if type(prompt) is bytes else bytes(prompt[:max_bytes])
        blocks = checksums_of(data, self._block_bytes, max_bytes)
        first = blocks[0] if blocks else -1
        young, old, weights = self._young, self._old, self.weights
        least: float = _MASK
        equal: list[Endpoint] = []
        near: list[Endpoint] = []
        for endpoint in endpoints:
            requests: float = endpoint.in_flight + endpoint.others
            if weights is not None:
                requests /= weights[endpoint.url]
            if requests < least:
                least, equal = requests, [endpoint]
            elif requests == least:
                equal.append(endpoint)
            url = endpoint.url
            if first in young.get(url, _NOTHING) or first in old.get(url, _NOTHING):
                near.append(endpoint)
        depth = 0
        if near:
            depth, holders = self._longest(near, least, blocks)
            if depth and depth >= len(blocks) * _LEAST_SHARE:
                equal = holders
                self.num_followed += 1
                self.num_followed_blocks += depth
        self.num_requests += 1
        self.num_blocks += len(blocks)
        chosen = equal[0]
        if len(equal) > 1:
            if session:
                lot = crc32(session.encode())
            else:
                lot = blocks[min(depth, len(blocks) - 1)] if blocks else crc32(prompt)
            chosen = self._draw(equal, lot)
        if blocks:
            self._note(chosen.url, blocks, now)
        return chosen

    def keep(self, urls: Collection[str]) -> None:
        """Forget what all other endpoints saw: they are gone."""
        for gone in {*self._young, *self._old, *self._lots} - set(urls):
            self._num_young -= len(self._young.pop(gone, ()))
            self._old.pop(gone, None)
            self._lots.pop(gone, None)

    def _longest(self, endpoints: Sequence[Endpoint], least: float, blocks: list[int]) -> tuple[int, list[Endpoint]]:
        """How many blocks the best of the endpoints that are not too busy saw, and the least busy of those that did;
        all of these endpoints saw the first block."""
        too_busy = max(least + self.spec.imbalance, least * self.spec.imbalance_ratio)
        best = 0
        fewest: float = 0
        holders: list[Endpoint] = []
        for endpoint in endpoints:
            requests: float = endpoint.in_flight + endpoint.others
            if self.weights is not None:
                requests /= self.weights[endpoint.url]
            if requests >= too_busy:
                continue
            url = endpoint.url
            depth = _depth(blocks, self._young.get(url, _NOTHING), self._old.get(url, _NOTHING))
            if depth > best or (depth == best and requests < fewest):
                best, fewest, holders = depth, requests, [endpoint]
            elif depth == best and requests == fewest:
                holders.append(endpoint)
        return best, holders

    def _draw(self, endpoints: Sequence[Endpoint], lot: int) -> Endpoint:
        """Rendezvous hashing, as `balance: session` does it, but by one multiplication an endpoint."""
        lots = self._lots
        if self.weights is not None:
            return self._draw_weighted(endpoints, lot, self.weights)
        best, chosen = -1, endpoints[0]
        for endpoint in endpoints:
            score = ((lots.get(endpoint.url) or self._lot(endpoint.url)) ^ lot) * _ODD & _MASK
            if score > best:
                best, chosen = score, endpoint
        return chosen

    def _draw_weighted(self, endpoints: Sequence[Endpoint], lot: int, weights: Mapping[str, float]) -> Endpoint:
        """The same by weights, as `balancing.by_session` does it."""

        def score(endpoint: Endpoint) -> float:
            drawn = ((self._lots.get(endpoint.url) or self._lot(endpoint.url)) ^ lot) * _ODD & _MASK
            return -weights[endpoint.url] / log((drawn + 0.5) / 2.0**64)

        return max(endpoints, key=score)

    def _lot(self, url: str) -> int:
        lot = self._lots[url] = int.from_bytes(blake2b(url.encode(), digest_size=8).digest(), "big")
        return lot

    def _note(self, url: str, blocks: list[int], now: float) -> None:
        """The endpoint sees these blocks now."""
        if self._num_young + len(blocks) > self._half:
            self._turn(now)
        young = self._young.get(url)
        if young is None:
            young = self._young[url] = set()
        before = len(young)
        young.update(blocks)
        self._num_young += len(young) - before

    def _turn(self, now: float) -> None:
        """The young half is full, or its time is over; after a long silence both halves' time is."""
        span = self.spec.ttl / 2
        self._old = self._young if now < self._turn_at + span else {}
        self._young = {}
        self._num_young = 0
        self._turn_at = now + span


def compared_bytes(spec: PrefixSpec) -> int:
    """How many bytes of a prompt count at most."""
    return spec.block_bytes * min(spec.max_blocks, max(1, spec.max_entries // 2))


def checksums_of(data: bytes, block_bytes: int, max_bytes: int) -> list[int]:
    """The checksums of a prompt's whole blocks, each of all up to its end."""
    checksum = 0
    blocks: list[int] = []
    for start in range(0, min(len(data), max_bytes) - block_bytes + 1, block_bytes):
        checksum = crc32(data[start : start + block_bytes], checksum)
        blocks.append(checksum)
    return blocks


def _depth(blocks: Sequence[int], young: AbstractSet[int], old: AbstractSet[int]) -> int:
    """How many blocks are known, where the first is: the known ones come first, so a binary search finds the last."""
    known, unknown = 0, len(blocks)
    while unknown - known > 1:
        middle = (known + unknown) // 2
        if blocks[middle] in young or blocks[middle] in old:
            known = middle
        else:
            unknown = middle
    return unknown
