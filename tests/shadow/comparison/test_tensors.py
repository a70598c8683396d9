"""Two tensors, element by element."""

from __future__ import annotations

import struct
from math import inf, nan

import numpy as np
import pytest

from gateway.config.experiment_specs import ShadowSpec, ToleranceSpec
from gateway.shadow.comparison.tensors import ComparedTensor, compare, tensor_of_raw

SPEC = ShadowSpec("new", top_k=2, tolerance=ToleranceSpec(absolute=0.01, relative=0.01))


def fp32(*values: object) -> ComparedTensor:
    return ComparedTensor("FP32", np.array(values, np.float32))


RAW = [
    ("BOOL", b"\x00\x01", [0, 1]),
    ("UINT8", b"\x00\xff", [0, 255]),
    ("INT8", b"\x00\xff", [0, -1]),
    ("UINT16", b"\x01\x00\xff\xff", [1, 65535]),
    ("INT16", b"\x01\x00\xff\xff", [1, -1]),
    ("UINT32", struct.pack("<2I", 1, 2**32 - 1), [1, 2**32 - 1]),
    ("INT32", struct.pack("<2i", 1, -(2**31)), [1, -(2**31)]),
    ("UINT64", struct.pack("<2Q", 1, 2**64 - 1), [1, 2**64 - 1]),
    ("INT64", struct.pack("<2q", 1, -(2**63)), [1, -(2**63)]),
    ("FP16", struct.pack("<2e", 1.5, -2.0), [1.5, -2.0]),
    ("BF16", struct.pack("<2H", 0x3FC0, 0xC000), [1.5, -2.0]),
    ("FP32", struct.pack("<2f", 1.5, -2.0), [1.5, -2.0]),
    ("FP64", struct.pack("<2d", 1.5, -2.0), [1.5, -2.0]),
]


@pytest.mark.parametrize("datatype, raw, values", RAW)
def test_every_datatype_is_read(datatype: str, raw: bytes, values: list[float]) -> None:
    """Each datatype is read from its raw form, and a tensor agrees with itself."""
    tensor = tensor_of_raw(datatype, (1, 2), raw)
    assert tensor.values.tolist() == [values]
    found = compare("y", tensor, tensor, SPEC)
    assert found.agrees
    assert (found.max_absolute, found.max_relative, found.excess) == (0.0, 0.0, 0.0)


def test_what_is_no_tensor_is_refused() -> None:
    """Data that does not fit the shape, or an unknown datatype, is an error."""
    with pytest.raises(ValueError, match="cannot reshape"):
        tensor_of_raw("FP32", (3,), b"\0" * 8)
    with pytest.raises(ValueError, match="'FP8'"):
        tensor_of_raw("FP8", (1,), b"\0")


def test_the_errors_are_exact() -> None:
    """One value that is 0.125 larger gives the exact largest and mean error, its index, and both values."""
    found = compare("y", fp32([1, 2], [4, 0]), fp32([1, 2], [4.125, 0]), SPEC)
    assert found.max_absolute == 0.125
    assert found.max_relative == 0.125 / 4.125
    assert found.mean_absolute == 0.125 / 4
    assert (found.index, found.primary, found.candidate) == ((1, 0), 4.0, 4.125)
    assert found.outside == 1
    assert not found.agrees


WITHIN = [
    (100.0, 100.9, True),  # the relative bound alone
    (0.0, 0.009, True),  # the absolute bound alone
    (1.0, 1.011, False),
    (100.0, 102.0, False),
]


@pytest.mark.parametrize("primary, candidate, agrees", WITHIN)
def test_either_bound_is_enough(primary: float, candidate: float, agrees: bool) -> None:
    """A difference within the absolute or the relative bound is tolerated."""
    assert compare("y", fp32(primary), fp32(candidate), SPEC).agrees is agrees


def test_without_tolerance_equal_is_equal() -> None:
    """With bounds of zero only equal values agree."""
    strict = ShadowSpec("new", tolerance=ToleranceSpec(0.0, 0.0))
    assert compare("y", fp32(1, 0), fp32(1, 0), strict).agrees
    assert not compare("y", fp32(1, 0), fp32(1, 1e-30), strict).agrees


def test_integers_of_64_bits_are_exact() -> None:
    """The difference of 64-bit integers is right where floats are not exact."""
    big = ComparedTensor("INT64", np.array([2**62, -(2**63)]))
    other = ComparedTensor("INT64", np.array([2**62 + 1, 2**63 - 1]))
    found = compare("y", big, other, SPEC)
    assert found.max_absolute == float(2**64 - 1)
    assert found.mean_absolute == (1 + float(2**64 - 1)) / 2


NONFINITE = [
    ((nan, 1), (nan, 1), 0),
    ((inf, 1), (inf, 1), 0),
    ((inf, 1), (-inf, 1), 1),
    ((nan, 1), (2, 1), 1),
    ((2, 1), (inf, 1), 1),
]


@pytest.mark.parametrize("primary, candidate, nonfinite", NONFINITE)
def test_what_is_not_finite_agrees_with_itself_alone(primary: object, candidate: object, nonfinite: int) -> None:
    """NaN agrees with NaN and an infinity with the same one; other non-finite values do not agree and are counted apart
    from the finite errors."""
    found = compare("y", fp32(*primary), fp32(*candidate), SPEC)  # type: ignore[misc]
    assert found.nonfinite == found.outside == nonfinite
    assert found.agrees is not bool(nonfinite)
    assert found.max_absolute == 0.0
    assert found.excess == (inf if nonfinite else 0.0)
    if nonfinite:
        assert found.index == (0,)


PROBLEMS = [
    (fp32(1), None, "only the primary has it"),
    (None, fp32(1), "only the candidate has it"),
    (fp32(1, 2), fp32([1, 2]), "shape [2] became [1, 2]"),
    (fp32(1), ComparedTensor("FP16", np.array([1], np.float16)), "FP32 became FP16"),
]


@pytest.mark.parametrize("primary, candidate, problem", PROBLEMS)
def test_what_cannot_be_compared_is_told(
    primary: ComparedTensor | None, candidate: ComparedTensor | None, problem: str
) -> None:
    """Tensors of different shape or datatype, or a missing one, do not agree."""
    found = compare("y", primary, candidate, SPEC)
    assert found.problem == problem
    assert not found.agrees


def test_ranks_are_of_the_last_axis() -> None:
    """Of two rows one has its largest value elsewhere, and three of the four values in the top two are the same."""
    found = compare("y", fp32([1, 2, 3], [9, 8, 1]), fp32([1, 2, 3], [1, 8, 9]), SPEC)
    assert found.argmax == 0.5
    assert found.top_k == 0.75


def test_equal_values_are_one_place() -> None:
    """Equal values have one rank, whichever of them an engine reports first."""
    found = compare("y", fp32([5, 5, 1]), fp32([5, 5, 1]), ShadowSpec("new", top_k=1))
    assert (found.argmax, found.top_k) == (1.0, 1.0)


def test_one_element_has_no_rank() -> None:
    """A single element, a scalar and a row with NaN have no ranks."""
    for tensor in (fp32([1], [2]), ComparedTensor("FP32", np.float32(3).reshape(())), fp32([nan, 1])):
        found = compare("y", tensor, tensor, SPEC)
        assert (found.argmax, found.top_k) == (None, None)
        assert found.agrees


def test_the_cosine_is_of_the_angle() -> None:
    """The cosine is 1 for a multiple, 0 for orthogonal values, and missing for zeros; large values do not overflow."""
    assert compare("y", fp32(3, 4), fp32(6, 8), SPEC).cosine == pytest.approx(1.0)
    assert compare("y", fp32(1, 0), fp32(0, 1), SPEC).cosine == pytest.approx(0.0)
    assert compare("y", fp32(0, 0), fp32(0, 1), SPEC).cosine is None
    large = ComparedTensor("FP64", np.array([1e300, 1e300]))
    assert compare("y", large, large, SPEC).cosine == pytest.approx(1.0)


def test_nothing_agrees_with_nothing() -> None:
    """An output without elements has no error."""
    empty = ComparedTensor("FP32", np.zeros((0, 4), np.float32))
    assert compare("y", empty, empty, SPEC).agrees


def test_the_slow_way_says_the_same() -> None:
    """Random tensors give the same result as plain Python, value by value."""
    rng = np.random.default_rng(7)
    for _ in range(50):
        a = rng.normal(size=(3, 5)).astype(np.float32)
        b = (a + rng.normal(size=a.shape) * 10 ** rng.uniform(-4, 0)).astype(np.float32)
        found = compare("y", ComparedTensor("FP32", a), ComparedTensor("FP32", b), SPEC)
        pairs = [(float(x), float(y)) for x, y in zip(a.ravel(), b.ravel(), strict=True)]
        errors = [abs(x - y) for x, y in pairs]
        relative = [abs(x - y) / max(abs(x), abs(y)) for x, y in pairs]
        excess = [min(error / 0.01, part / 0.01) for error, part in zip(errors, relative, strict=True)]
        assert found.max_absolute == max(errors)
        assert found.max_relative == max(relative)
        assert found.mean_absolute == pytest.approx(sum(errors) / len(errors))
        assert found.outside == sum(each > 1 for each in excess)
        assert found.excess == pytest.approx(max(excess))
        rows = list(zip(a.tolist(), b.tolist(), strict=True))
        assert found.argmax == sum(x.index(max(x)) == y.index(max(y)) for x, y in rows) / 3
        tops = [(set(np.argsort(x)[-2:].tolist()), set(np.argsort(y)[-2:].tolist())) for x, y in rows]
        assert found.top_k == pytest.approx(sum(len(x & y) for x, y in tops) / 6)
