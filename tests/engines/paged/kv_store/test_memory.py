"""Blocks copied out of the cache and back: on the CPU, and on a GPU that runs asynchronously."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from engines.paged.cache.memory import KVCache
from engines.paged.kv_store.block_store import BlockMemory
from engines.paged.model.config_reader import read_config
from engines.paged.ops.reference import Ops
from tests.engines.paged.support.fake_mps import FakeMps
from tests.engines.paged.support.tiny_models import tiny_model


@pytest.fixture(params=["cpu", "mps"])
def ops(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Ops]:
    if request.param == "cpu":
        yield Ops("cpu")
        return
    with FakeMps() as device:
        device.install(monkeypatch)
        yield device.metal_ops()
        assert device.num_freed_sources == 0


@torch.inference_mode()
def test_blocks_go_out_and_come_back(ops: Ops) -> None:
    """Blocks copied out and into other blocks have the same keys and values of all layers, in the model's cache and the
    draft model's; copying in does not wait for the device."""
    configs = [read_config(tiny_model("llama")), read_config(tiny_model("llama", num_hidden_layers=1))]
    caches = [KVCache(config, 9, 4, ops.device) for config in configs]
    contents = [[torch.randn(each.shape) for each in (cache.keys, cache.values)] for cache in caches]
    for cache, (keys, values) in zip(caches, contents, strict=True):
        cache.keys.copy_(keys)
        cache.values.copy_(values)
    memory = BlockMemory(caches, ops)
    copied = memory.copy_out([5, 2]).values()
    arrays = [array for packed in copied for array in packed.unbind(1)]
    assert [tuple(array.shape[1:]) for array in arrays] == memory.shapes
    for array, expected in zip(arrays, [each for both in contents for each in both], strict=True):
        assert torch.equal(array[0], expected[:, 5]) and torch.equal(array[1], expected[:, 2])

    memory.copy_in([7, 1], arrays)
    del arrays, copied
    sources = ops.staging.take_sources()
    ops.synchronize()
    for cache, both in zip(caches, contents, strict=True):
        for tensor, expected in zip((cache.keys, cache.values), both, strict=True):
            expected[:, 7], expected[:, 1] = expected[:, 5], expected[:, 2]
            assert torch.equal(tensor.cpu(), expected)
    assert len(sources) == (0 if ops.device.type == "cpu" else 4)
