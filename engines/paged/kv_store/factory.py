"""The store of an engine's blocks, from its options."""

from __future__ import annotations

from collections.abc import Mapping

from engines.paged.kv_store.block_store import BlockStore
from engines.paged.kv_store.codec import CODECS, BlockCodec
from engines.paged.kv_store.keys import BlockIdentity, BlockKeys
from engines.paged.kv_store.memory import BlockMemory
from engines.paged.options import EngineOptions
from engines.state.factory import open_store, read_secret
from engines.state.redis_store import RedisStateStore

# How much of a fetch's deadline one answer of the store may take: a fetch has several.
_ANSWER_SHARE = 0.25


def open_block_store(
    options: EngineOptions,
    memory: BlockMemory,
    model: str,
    draft: str | None,
    adapters: Mapping[str, str],
) -> BlockStore | None:
    """`model`, `draft` and `adapters` are fingerprints; None where no store is asked for.

    Raises: EngineError that says what is wrong with the URL or the secret's file.
    """
    if options.kv_store is None:
        return None
    codec = BlockCodec(memory.shapes, memory.dtype, CODECS[options.kv_codec])
    secret = None if options.kv_secret_file is None else read_secret(options.kv_secret_file)
    dtype = str(memory.dtype).removeprefix("torch.")
    numbers = BlockIdentity(model, dtype, options.block_size, options.kv_codec, options.deterministic, draft)
    store = open_store(
        options.kv_store,
        secret=secret,
        ttl_seconds=options.kv_ttl,
        deadline_seconds=options.kv_deadline * _ANSWER_SHARE,
    )
    where = str(store.address) if isinstance(store, RedisStateStore) else "this process"
    about = (
        f"{where}: {codec.num_bytes / 1024:,.0f} KiB a block ({options.kv_codec}), kept {options.kv_ttl / 3600:g} h "
        f"after its last use{', sealed' if secret else ''}; waits {options.kv_deadline:g} s"
    )
    return BlockStore(store, BlockKeys(numbers, adapters, secret), codec, memory, about, options.block_size)
