"""Keys of stored blocks: equal where the computed numbers are equal, different otherwise."""

import os
import subprocess
import sys
from dataclasses import replace

import pytest

from engines.paged.base.types import GenerateRequest, SamplingParams
from engines.paged.cache.block_pool import block_hash, root_hash
from engines.paged.kv_store.codec import BlockIdentity, BlockKeys

NUMBERS = BlockIdentity("ab" * 32, "bfloat16", 16, "raw")
NAME = block_hash(root_hash("\0"), list(range(16)))
KEY = (
    "pointsman:1:kv:1ea04caa140c50b01699deb41febb0e91bad6991dec38b3032970d058dfedea5:"
    "42cbe0be40d7ae596ea186ebcb94b882ac7cbc3cd2dafef4acaae338a39f69d3"
)
SECRET = b"0123456789abcdef"


def request(adapter: str | None = None, salt: str = "") -> GenerateRequest:
    return GenerateRequest("1", (1,), SamplingParams(), adapter=adapter, cache_salt=salt)


def test_a_key_is_the_same_in_each_process_and_on_each_machine() -> None:
    """The key has this fixed value: a change of the key format requires a new layout version."""
    assert BlockKeys(NUMBERS, {}, None).of(request(), NAME) == KEY


@pytest.mark.parametrize("seed", ["0", "1"])
def test_no_seed_of_a_process_is_in_it(seed: str) -> None:
    """The key is independent of PYTHONHASHSEED, which differs between processes (the cause of LMCache's misses)."""
    script = (
        "from tests.engines.paged.kv_store.test_keys import *\nprint(BlockKeys(NUMBERS, {}, None).of(request(), NAME))"
    )
    environment = {**os.environ, "PYTHONHASHSEED": seed}
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == KEY


CHANGES = [
    {"model": "cd" * 32},
    {"dtype": "float16"},
    {"block_size": 32},
    {"codec": "int8"},
    {"deterministic": True},
    {"draft": "ab"},
]


@pytest.mark.parametrize("change", CHANGES, ids=str)
def test_other_numbers_have_other_keys(change: dict[str, object]) -> None:
    """Everything that a block depends on is in its key, so that no request gets another model's blocks."""
    assert BlockKeys(replace(NUMBERS, **change), {}, None).of(request(), NAME) != KEY  # type: ignore[arg-type]


def test_an_adapter_is_known_by_its_weights() -> None:
    """An adapter is identified by its weights, not by its name."""
    one, other = BlockKeys(NUMBERS, {"sql": "11"}, None), BlockKeys(NUMBERS, {"sql": "22"}, None)
    keys = {keys.of(request("sql"), NAME) for keys in (one, other)} | {KEY}
    assert len(keys) == 3


def test_a_secret_hides_which_texts_were_seen() -> None:
    """Without the secret the key of a text cannot be computed; each tenant has its own keys."""
    keys = BlockKeys(NUMBERS, {}, SECRET)
    made = {keys.of(request(salt=salt), NAME) for salt in ("", "a", "b")} | {KEY}
    assert len(made) == 4
    assert all(key.startswith(KEY.rpartition(":")[0]) for key in made)
