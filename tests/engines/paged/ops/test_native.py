"""Compiled CPU attention against torch's: equal numbers, bit-identical regardless of other sequences."""

from __future__ import annotations

import ctypes
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from engines.core.errors import EngineError
from engines.paged.device import choose_ops
from engines.paged.ops import cpp_compiler
from engines.paged.ops.cpp_compiler import CompileError, NoCompilerError
from engines.paged.ops.interface import LayerCache
from engines.paged.ops.native import attention
from engines.paged.ops.native.attention import NativeDecode, NativeOps, check_kernel, load_kernel
from engines.paged.ops.reference import Ops
from tests.engines.paged.support.paging import batch_of

CPU = torch.device("cpu")
BLOCK = 16
SHAPES = [(4, 4, 64), (12, 4, 64), (8, 1, 128), (4, 2, 80), (14, 2, 96), (2, 1, 256), (4, 4, 16)]
TOLERANCES = {torch.float32: 2e-6, torch.bfloat16: 1e-2, torch.float16: 2e-3}
# One block and its boundaries, one piece of the cache and its boundaries, and several.
LENGTHS = [1, 2, 15, 16, 17, 127, 128, 129, 300]


@pytest.fixture(scope="module", autouse=True)
def has_a_compiler() -> None:
    try:
        cpp_compiler.compiler()
    except NoCompilerError as error:
        pytest.skip(str(error))


def native(heads: int, groups: int, size: int, dtype: torch.dtype) -> NativeOps:
    ops = NativeOps(is_required=True)
    ops.prepare_attention(heads, groups, size, dtype)
    return ops


def cached(groups: int, size: int, dtype: torch.dtype, num_blocks: int = 200) -> LayerCache:
    return LayerCache(*(torch.randn(num_blocks, BLOCK, groups, size).to(dtype) for _ in range(2)))


def tables(lengths: list[int]) -> list[list[int]]:
    """Scattered, separate blocks for sequences of these lengths."""
    left = iter((torch.randperm(199) + 1).tolist())
    return [[next(left) for _ in range(-(-length // BLOCK))] for length in lengths]


@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
@pytest.mark.parametrize("heads, groups, size", SHAPES)
def test_decoding_is_attention(heads: int, groups: int, size: int, dtype: torch.dtype) -> None:
    """In each dtype the result is torch's in float32, up to rounding of the result."""
    torch.manual_seed(1)
    batch = batch_of([1] * len(LENGTHS), LENGTHS, tables(LENGTHS), BLOCK)
    cache = cached(groups, size, dtype)
    q = torch.randn(len(LENGTHS), heads, size).to(dtype)
    exact = LayerCache(cache.keys.float(), cache.values.float())
    for window in (0, 1, 20, 200):
        expected = Ops("cpu").attention(q.float(), exact, batch, size**-0.5, window)
        results = native(heads, groups, size, dtype).attention(q, cache, batch, size**-0.5, window)
        assert results.dtype == dtype
        assert torch.allclose(results.float(), expected, atol=TOLERANCES[dtype], rtol=TOLERANCES[dtype])
        batch.scratch.clear()


def test_prompts_among_decodes_go_by_torch() -> None:
    """In a mixed step each row has its own sequence's attention, in its place."""
    torch.manual_seed(1)
    batch = batch_of([1, 1, 7, 20], [40, 9, 30, 20], tables([40, 9, 30, 20]), BLOCK)
    cache, q = cached(2, 64, torch.float32), torch.randn(29, 4, 64)
    expected = Ops("cpu").attention(q, cache, batch, 0.1, 0)
    batch.scratch.clear()
    assert torch.allclose(native(4, 2, 64, torch.float32).attention(q, cache, batch, 0.1, 0), expected, atol=2e-6)


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_a_row_is_the_same_to_the_bit(threads: int) -> None:
    """A sequence's result is bit-identical alone, among others, and with more threads."""
    torch.manual_seed(1)
    ops = native(6, 2, 64, torch.bfloat16)
    cache, q = cached(2, 64, torch.bfloat16), torch.randn(len(LENGTHS), 6, 64).bfloat16()
    where = tables(LENGTHS)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        together = ops.attention(q, cache, batch_of([1] * len(LENGTHS), LENGTHS, where, BLOCK), 0.1, 0)
        for row, length in enumerate(LENGTHS):
            alone = ops.attention(q[row : row + 1], cache, batch_of([1], [length], [where[row]], BLOCK), 0.1, 0)
            assert torch.equal(alone[0], together[row])
    finally:
        torch.set_num_threads(before)


# dispatch_apply_f of a Mac's libSystem, with pthreads; `dispatched` counts its calls and its work items.
DISPATCH = """
#include <pthread.h>
#include <stddef.h>
struct Turn { void *context; void (*work)(void *, size_t); size_t at; };
extern "C" int dispatched[2] = {0, 0};
static void *take(void *given) {
    Turn *turn = (Turn *)given;
    turn->work(turn->context, turn->at);
    return 0;
}
extern "C" void dispatch_apply_f(size_t iterations, void *queue, void *context, void (*work)(void *, size_t)) {
    if (queue) return;
    dispatched[0]++, dispatched[1] += (int)iterations;
    pthread_t threads[64];
    Turn turns[64];
    for (size_t at = 0; at < iterations; at++) {
        turns[at] = Turn{context, work, at};
        pthread_create(&threads[at], 0, take, &turns[at]);
    }
    for (size_t at = 0; at < iterations; at++) pthread_join(threads[at], 0);
}
"""


def test_work_is_shared_out_by_dispatch_on_a_mac(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """On a Mac libdispatch runs the work: each thread takes part, and the result is bit-identical."""
    torch.manual_seed(1)
    cache, q = cached(2, 64, torch.float32), torch.randn(len(LENGTHS), 4, 64)
    batch = batch_of([1] * len(LENGTHS), LENGTHS, tables(LENGTHS), BLOCK)
    expected = native(4, 2, 64, torch.float32).attention(q, cache, batch, 0.1, 0)
    stand_in = ctypes.CDLL(str(cpp_compiler.build(DISPATCH, ("-x", "c++", "-shared", "-fPIC", "-pthread"), tmp_path)))
    with monkeypatch.context() as patched:
        patched.setattr(attention, "sys", SimpleNamespace(platform="darwin"))
        patched.setattr(
            attention.ctypes, "CDLL", lambda path: stand_in if path is None else ctypes.cdll.LoadLibrary(path)
        )
        attention._parallel.cache_clear()
        attend = native(4, 2, 64, torch.float32).attention
    attention._parallel.cache_clear()
    counts = (ctypes.c_int * 2).in_dll(stand_in, "dispatched")
    before = torch.get_num_threads()
    try:
        for threads, dispatched in ((3, [1, 3]), (1, [0, 0])):
            counts[:] = [0, 0]
            torch.set_num_threads(threads)
            assert torch.equal(attend(q, cache, batch, 0.1, 0), expected)
            assert list(counts) == dispatched
    finally:
        torch.set_num_threads(before)


def test_what_is_not_the_sequences_own_is_never_read() -> None:
    """NaN in other blocks, and after a sequence's last token, does not affect it."""
    poisoned = [torch.full((64, BLOCK, 1, 16), float("nan")) for _ in range(2)]
    for table, tokens in (([3, 9], 20), ([2], 5)):
        for position in range(tokens):
            for each in poisoned:
                each[table[position // BLOCK], position % BLOCK] = 1.0
    q = torch.ones(2, 2, 16)
    batch = batch_of([1, 1], [20, 5], [[3, 9], [2]], BLOCK)
    results = native(2, 1, 16, torch.float32).attention(q, LayerCache(*poisoned), batch, 1.0, 0)
    assert torch.allclose(results, torch.ones(2, 32))


def test_large_scores_overflow_nothing() -> None:
    """Softmax subtracts the highest score, however high it is and even if it is in a later piece."""
    cache = LayerCache(torch.zeros(20, BLOCK, 1, 16), torch.randn(20, BLOCK, 1, 16))
    cache.keys[10, 3] = 1e4  # far behind the first piece
    q = torch.ones(1, 1, 16)
    batch = batch_of([1], [300], [list(range(1, 20))], BLOCK)
    results = native(1, 1, 16, torch.float32).attention(q, cache, batch, 1.0, 0)
    assert torch.allclose(results, cache.values[10, 3])


def test_without_a_compiler_torch_attends(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a compiler `auto` uses torch, and `native` fails with an error that names what is missing."""
    monkeypatch.setattr(cpp_compiler, "candidates", lambda: iter(()))
    ops = choose_ops("auto", CPU, torch.float32)
    ops.prepare_attention(4, 2, 64, torch.float32)
    cache, q = cached(2, 64, torch.float32), torch.randn(1, 4, 64)
    batch = batch_of([1], [20], [[3, 9]], BLOCK)
    assert torch.equal(ops.attention(q, cache, batch, 0.1, 0), Ops("cpu").attention(q, cache, batch, 0.1, 0))
    with pytest.raises(EngineError, match=r"ops: 'native' cannot attend here: no C\+\+ compiler: set CXX"):
        choose_ops("native", CPU, torch.float32).prepare_attention(4, 2, 64, torch.float32)


def test_a_source_that_cannot_be_compiled_names_the_reason(tmp_path: Path) -> None:
    """The error has the compiler's own message."""
    with pytest.raises(CompileError, match="nonsense"):
        cpp_compiler.build("nonsense here;", ("-x", "c++", "-shared", "-fPIC"), tmp_path)


@pytest.mark.parametrize("size, dtype, why", [(40, torch.float32, "multiple of 16"), (64, torch.float64, "is none of")])
def test_shapes_that_it_is_not_made_for(size: int, dtype: torch.dtype, why: str) -> None:
    """A shape or a dtype without a kernel is refused with an error that names it."""
    with pytest.raises(ValueError, match=why):
        load_kernel(4, 2, size, dtype)


def test_a_kernel_that_computes_something_else_is_found_out() -> None:
    """Before its first use each kernel's attention is compared with torch's."""
    right = NativeDecode(load_kernel(4, 2, 64, torch.float32))
    check_kernel(right, 4, 2, 64, torch.float32)

    class Wrong(NativeDecode):
        def __call__(self, q, keys, values, plan, scale, out) -> None:  # type: ignore[no-untyped-def]
            super().__call__(q, keys, values, plan, scale * 1.01, out)

    with pytest.raises(CompileError, match="off what torch computes"):
        check_kernel(Wrong(load_kernel(4, 2, 64, torch.float32)), 4, 2, 64, torch.float32)


def test_other_devices_have_other_operations() -> None:
    """`native` exists for CPUs only."""
    with pytest.raises(EngineError, match="it needs device 'cpu'"):
        choose_ops("native", torch.device("cuda"), torch.float32)
