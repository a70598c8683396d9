"""Which blocks of prompts each endpoint of an engine has in its KV cache, by the engine's own events.

Events name blocks of tokens; workers compare blocks of bytes. Prompts that workers have seen join the two: their tokens
say in which token block each of their byte blocks ends. A byte block is cached at an endpoint while that token block
and all before it are; so the blocks of tokens are a tree, whose paths are texts.

Pure: no clock, no socket. Memory is bounded by `max_entries` token blocks, as many byte blocks, and as many names of
token blocks at each endpoint.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from gateway.protocol.kv_events import AllBlocksCleared, BlockHash, BlocksRemoved, BlocksStored, KvEvent

# Prompts that came before the first event, which says how large blocks are.
_EARLY_PROMPTS = 256

# Each prompt is followed in blocks of each size.
_MAX_SIZES = 4
_MAX_ADAPTERS = 1000
_MAX_PLACES = 16  # of one block

_Place = tuple[str | None, int | None]  # a medium and a group of layers
# Of a block that was stored before its events were followed: what follows it was stored since.
_ASSUMED: _Place = ("assumed", None)


class TokenizedPrompt(NamedTuple):
    """A prompt's tokens, and for each of its byte blocks how many tokens it takes to reach the block's end."""

    model: str
    token_ids: Sequence[int]
    blocks: Sequence[tuple[int, int]]  # a byte block's checksum, the number of tokens


@dataclass(slots=True)
class BlockChanges:
    """What has changed at one endpoint: byte blocks that it has, and no longer has. `is_cleared`: it had no others."""

    is_cleared: bool = False
    cached: dict[int, bool] = field(default_factory=dict)  # by checksum; the last change counts


class _TokenBlock:
    """A node of the tree. `holders` are the endpoints that have it, `reached` those that have all before it, too."""

    __slots__ = ("checksums", "children", "holders", "key", "parent", "reached")

    def __init__(self, parent: _TokenBlock | None, key: bytes) -> None:
        self.parent = parent
        self.key = key
        self.children: dict[bytes, _TokenBlock] = {}
        self.checksums: set[int] = set()  # of byte blocks that end here
        self.holders: dict[str, set[_Place]] = {}  # by URL
        self.reached: set[str] = set()


class CachedBlocks:
    """Of one engine."""

    def __init__(self, max_entries: int) -> None:
        self._max_entries = max_entries
        self._roots: dict[str, _TokenBlock] = {"": _TokenBlock(None, b"")}  # by LoRA adapter; "": the model itself
        self._num_blocks = 0
        self._by_hash: dict[str, dict[BlockHash, _TokenBlock]] = {}  # by URL, then the engine's name of the block
        self._assumed: dict[str, dict[_TokenBlock, BlockHash | None]] = {}  # by URL, with their names if known
        self._by_key: dict[bytes, set[_TokenBlock]] = {}  # by their tokens alone
        self._ends: OrderedDict[int, set[_TokenBlock]] = OrderedDict()  # by checksum, the oldest first
        self._sizes: set[int] = set()  # tokens of a block
        self._early: deque[TokenizedPrompt] = deque(maxlen=_EARLY_PROMPTS)
        self._changes: dict[str, BlockChanges] = {}
        self.num_events = 0
        self.num_gaps = 0  # of the streams of events, after which an endpoint was begun with anew
        self.num_unplaced = 0  # stored blocks that follow unknown ones, or found no room
        self.num_joined = 0  # prompts
        self.is_matched = False  # whether a prompt's tokens were found at an endpoint

    def __len__(self) -> int:
        return self._num_blocks

    def take_changes(self) -> dict[str, BlockChanges]:
        """What has changed since the last call, by the endpoint's URL."""
        changes, self._changes = self._changes, {}
        return changes

    def knows(self, checksum: int) -> bool:
        """Whether a byte block is joined with tokens."""
        return checksum in self._ends

    def apply(self, url: str, event: KvEvent) -> None:
        """An endpoint's cache has changed."""
        self.num_events += 1
        match event:
            case BlocksStored():
                self._store(url, event)
            case BlocksRemoved(hashes, medium, group):
                names = self._by_hash.get(url, {})
                for each in hashes:
                    if (block := names.get(each)) is not None:
                        self._remove(url, each, block, (medium, group))
            case AllBlocksCleared():
                self.clear(url)

    def clear(self, url: str) -> None:
        """An endpoint has nothing cached, or what it has is unknown."""
        for block in {*self._by_hash.pop(url, {}).values(), *self._assumed.pop(url, ())}:
            block.holders.pop(url, None)
            block.reached.discard(url)
            self._prune(block)
        self._changes[url] = BlockChanges(is_cleared=True)

    def keep(self, urls: Iterable[str]) -> None:
        """Forget all other endpoints."""
        for gone in self._by_hash.keys() - set(urls):
            self.clear(gone)
            del self._changes[gone]

    def join(self, prompt: TokenizedPrompt) -> None:
        """A worker has seen this prompt: follow its byte blocks from now on; what is cached of them is a change."""
        if not self._sizes:
            self._early.append(prompt)
            return
        for size in self._sizes:
            self._join(prompt, size)

    def refresh(self, checksums: Iterable[int]) -> None:
        """Report again who has these byte blocks: a worker has seen them that may not know."""
        for checksum in checksums:
            ends = self._ends.get(checksum)
            if ends is None:
                continue
            self._ends.move_to_end(checksum)
            for url in frozenset().union(*[end.reached for end in ends]):
                self._change(url, checksum, is_cached=True)

    @property
    def is_full(self) -> bool:
        return self._num_blocks >= self._max_entries

    def _join(self, prompt: TokenizedPrompt, size: int) -> None:
        self.num_joined += 1
        ids = prompt.token_ids
        last = min(len(ids), max((tokens for _, tokens in prompt.blocks), default=0)) // size
        last = max(last, min(1, len(ids) // size))
        self._make_room(last)
        path: list[_TokenBlock] = []
        block = self._roots.get(prompt.model) or self._roots[""]
        for start in range(0, last * size, size):
            if self.is_full:
                break
            block = self._child(block, ids[start : start + size])
            path.append(block)
        if not path:
            return
        for checksum, tokens in prompt.blocks:
            end = path[min(max(tokens // size, 1), len(path)) - 1]
            ends = self._ends.setdefault(checksum, set())
            self._ends.move_to_end(checksum)
            ends.add(end)
            end.checksums.add(checksum)
            for url in end.reached:
                self._change(url, checksum, is_cached=True)
        while len(self._ends) > self._max_entries:
            self._drop_oldest()
        self._prune(path[-1])  # what is behind the last byte block is of no use

    def _store(self, url: str, event: BlocksStored) -> None:
        size, tokens, parent = event.block_size, event.token_ids, event.parent_block_hash
        if size not in self._sizes:
            if len(self._sizes) >= _MAX_SIZES:
                self.num_unplaced += len(event.block_hashes)
                return
            self._sizes.add(size)
            for prompt in self._early:
                self._join(prompt, size)
        names = self._by_hash.setdefault(url, {})
        adapter = event.lora_name or ""
        block = names.get(parent) if parent is not None else self._root(adapter)
        if block is None and parent is not None:
            block = self._assume(url, parent, tokens[:size])
        place = event.medium, event.group_idx
        for index, name in enumerate(event.block_hashes):
            ids = tokens[index * size : (index + 1) * size]
            if block is None or len(ids) < size or self.is_full or len(names) >= self._max_entries:
                self.num_unplaced += len(event.block_hashes) - index
                return
            block = names.get(name) or self._child(block, ids)
            names[name] = block
            places = block.holders.setdefault(url, set())
            if len(places) < _MAX_PLACES:
                places.add(place)
            before = block.parent
            if before is not None and (before.parent is None or url in before.reached):
                self._reach(url, block)

    def _assume(self, url: str, name: BlockHash, following: Sequence[int]) -> _TokenBlock | None:
        """The block of this name, which the endpoint had before its events were followed: that before the tokens that
        follow it, where one prompt has these. An engine has all blocks before one that it stores."""
        found = self._by_key.get(_key(following), ())
        last = next(iter(found)).parent if len(found) == 1 else None
        if last is None or last.parent is None:
            return None
        self._by_hash[url][name] = last
        path: list[_TokenBlock] = []
        block: _TokenBlock | None = last
        while block is not None and block.parent is not None:
            path.append(block)
            block = block.parent
        for each in reversed(path):
            if url not in each.holders:
                each.holders[url] = {_ASSUMED}
                self._assumed.setdefault(url, {})[each] = name if each is last else None
            self._reach(url, each)
        return last

    def _root(self, adapter: str) -> _TokenBlock | None:
        root = self._roots.get(adapter)
        if root is None and len(self._roots) < _MAX_ADAPTERS:
            root = self._roots[adapter] = _TokenBlock(None, b"")
        return root

    def _child(self, parent: _TokenBlock, ids: Sequence[int]) -> _TokenBlock:
        key = _key(ids)
        block = parent.children.get(key)
        if block is None:
            block = parent.children[key] = _TokenBlock(parent, key)
            self._by_key.setdefault(key, set()).add(block)
            self._num_blocks += 1
        return block

    def _reach(self, url: str, first: _TokenBlock) -> None:
        """An endpoint has all blocks up to this one, and maybe more behind it."""
        left = [first]
        while left:
            block = left.pop()
            if url in block.reached:
                continue
            block.reached.add(url)
            for checksum in block.checksums:
                self._change(url, checksum, is_cached=True)
            left += [child for child in block.children.values() if url in child.holders]

    def _remove(self, url: str, name: BlockHash, block: _TokenBlock, place: _Place) -> None:
        places = block.holders.get(url, set())
        places -= {place, _ASSUMED}
        if places and place != (None, None):  # an event that names no medium is about all
            return
        self._by_hash[url].pop(name)
        self._release(url, block)
        # Engines evict the end of a text first: what was assumed before it may go now
        before = block.parent
        while before is not None and before.holders.get(url) == {_ASSUMED}:
            if any(url in child.holders for child in before.children.values()):
                break
            last, before = before, before.parent
            self._release(url, last)
            self._prune(last)
        self._prune(block)

    def _release(self, url: str, block: _TokenBlock) -> None:
        """An endpoint no longer has a block, nor any use of those behind it."""
        block.holders.pop(url, None)
        if (name := self._assumed.get(url, {}).pop(block, None)) is not None:
            self._by_hash[url].pop(name, None)
        left = [block]
        while left:
            each = left.pop()
            if url in each.reached:
                each.reached.remove(url)
                for checksum in each.checksums:
                    if not any(url in end.reached for end in self._ends[checksum]):
                        self._change(url, checksum, is_cached=False)
                left += each.children.values()

    def _change(self, url: str, checksum: int, *, is_cached: bool) -> None:
        changes = self._changes.get(url)
        if changes is None:
            changes = self._changes[url] = BlockChanges()
        changes.cached[checksum] = is_cached
        self.is_matched |= is_cached

    def _make_room(self, num_blocks: int) -> None:
        """Drop the oldest prompts for so many token blocks."""
        while self._ends and self._num_blocks + num_blocks > self._max_entries:
            self._drop_oldest()

    def _drop_oldest(self) -> None:
        checksum, ends = self._ends.popitem(last=False)
        for end in ends:
            end.checksums.discard(checksum)
            self._prune(end)

    def _prune(self, block: _TokenBlock) -> None:
        """Remove a block that nobody has and no prompt ends in, and those before it."""
        while block.parent is not None and not (block.children or block.holders or block.checksums):
            if block.parent.children.pop(block.key, None) is not None:
                self._num_blocks -= 1
                alike = self._by_key[block.key]
                alike.discard(block)
                if not alike:
                    del self._by_key[block.key]
            block = block.parent


def _key(ids: Sequence[int]) -> bytes:
    return array("i", ids).tobytes()
