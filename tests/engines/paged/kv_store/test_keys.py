"""Keys of stored blocks: the same wherever the same numbers are computed, and others wherever they are not."""

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
    """This very text: a change of how keys are made is another layout version."""
    assert BlockKeys(NUMBERS, {}, None).of(request(), NAME) == KEY


@pytest.mark.parametrize("seed", ["0", "1"])
def test_no_seed_of_a_process_is_in_it(seed: str) -> None:
    """Python's hashes differ from process to process (LMCache's misses came from that); ours do not."""
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
    """Everything that a block depends on is in its key: no request is answered from another model's blocks."""
    assert BlockKeys(replace(NUMBERS, **change), {}, None).of(request(), NAME) != KEY  # type: ignore[arg-type]


def test_an_adapter_is_known_by_its_weights() -> None:
    """Whatever requests call it."""
    one, other = BlockKeys(NUMBERS, {"sql": "11"}, None), BlockKeys(NUMBERS, {"sql": "22"}, None)
    keys = {keys.of(request("sql"), NAME) for keys in (one, other)} | {KEY}
    assert len(keys) == 3


def test_a_secret_hides_which_texts_were_seen() -> None:
    """Without it a text's key cannot be computed; tenants have keys of their own."""
    keys = BlockKeys(NUMBERS, {}, SECRET)
    made = {keys.of(request(salt=salt), NAME) for salt in ("", "a", "b")} | {KEY}
    assert len(made) == 4
    assert all(key.startswith(KEY.rpartition(":")[0]) for key in made)
