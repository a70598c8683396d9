"""The fake Apple GPU detects the mistakes that it is made to detect."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from engines.paged.base.transfer import HostCopy
from engines.paged.ops.metal import MetalOps
from engines.paged.ops.metal.kernels import Kernels
from tests.engines.paged.support.fake_mps import MPS, FakeMps


def test_results_are_those_of_the_processor() -> None:
    """For any torch operations on the device, the final result equals the CPU's."""
    x, weight = torch.randn(5, 8), torch.randn(8, 8)
    ids = torch.tensor([3, 0, 4])
    with FakeMps():
        y = x.to(MPS) @ weight.to(MPS)
        y[1:3].add_(1)
        y.index_copy_(0, ids.to(MPS), torch.zeros(3, 8, device=MPS))
        rows = torch.cat([y, y.view(8, 5).T.contiguous().view(5, 8)]).softmax(-1)
        found = rows.sum(0), rows.argmax(1), rows[2].max().item()
        with pytest.raises(AssertionError, match="no float64"):
            rows.to(torch.float64)
    y = x @ weight
    y[1:3] += 1
    y[ids] = 0
    expected = torch.cat([y, y.view(8, 5).T.reshape(5, 8)]).softmax(-1)
    torch.testing.assert_close(torch.tensor(found[0].memory.tolist()), expected.sum(0))
    assert found[1].memory.tolist() == expected.argmax(1).tolist()
    assert found[2] == pytest.approx(expected[2].max().item())


def test_a_source_that_is_let_go_of_is_garbage() -> None:
    """A non-blocking copy reads its source later: a source that was freed or overwritten meanwhile arrives changed; a
    source that its owner keeps arrives whole."""
    with FakeMps() as device:
        kept = torch.tensor([1, 2, 3])
        written = torch.tensor([1, 2, 3])
        copies = [
            kept.to(MPS, non_blocking=True),
            written.to(MPS, non_blocking=True),
            torch.tensor([1, 2, 3]).to(MPS, non_blocking=True),
            torch.from_numpy(np.array([1, 2, 3])).to(MPS, non_blocking=True),
        ]
        written[1] = 7
        arrived = [copy.tolist() for copy in copies]
    assert arrived[:2] == [[1, 2, 3], [1, 7, 3]]
    assert all(values != [1, 2, 3] for values in arrived[2:])
    assert device.num_freed_sources == 2


def test_what_waits_is_counted() -> None:
    """Blocking copies, tensors made of lists, numbers that are read and `synchronize` count as waits; other calls do
    not."""
    source = torch.tensor([1.0, 2.0])
    with FakeMps() as device:
        x = source.to(MPS, non_blocking=True)
        y = (x * 2 + torch.zeros(2, device=MPS))[:1]
        here = y.to("cpu", non_blocking=True)
        assert device.num_waits == 0 and here.isnan().all()
        torch.tensor([0, 1], device=MPS)
        source.to(MPS)
        assert y.item() == 2.0
        y.cpu()
        device.synchronize()
    assert device.num_waits == 5
    assert "test_what_waits_is_counted" in device.waits[0]


def test_an_event_is_past_when_the_stream_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """The data of HostCopy is right, although the stream has not run the operations after it."""
    with FakeMps() as device:
        device.install(monkeypatch)
        x = torch.full((2,), 3.0, device=MPS)
        copy = HostCopy(MPS, x * 2)
        x.add_(1)
        assert [each.tolist() for each in copy.values()] == [[6.0, 6.0]]
        assert len(device._stream) == 1 and device.num_waits == 0


def test_kernels_run_in_the_stream() -> None:
    """A kernel's result is garbage until the stream has run, and it takes no memory of the host."""
    with FakeMps() as device:
        library = Kernels(device.compile_shader, MPS).load("ordering")
        a = torch.arange(256, dtype=torch.int32, device=MPS)
        b = torch.empty_like(a)
        library.run("ordering_forth", (1,), 256, b, a)
        before = b.memory.clone()
        device.synchronize()
        assert not torch.equal(before, b.memory)
        with pytest.raises(AssertionError, match="the host's memory"):
            library.run("ordering_forth", (1,), 256, b, torch.zeros(256, dtype=torch.int32))
    assert isinstance(device.metal_ops(), MetalOps)
