"""The classification extension, as Triton writes classes."""

from array import array
from types import SimpleNamespace

import pytest

from engines.core.errors import EngineError
from engines.core.messages import TensorData
from engines.host.classification import classify
from gateway.protocol.conversion.tensors import split_elements


def model(has_batches, labels=()):
    return SimpleNamespace(has_batches=has_batches, labels=lambda output: labels)


def reported(datatype, code, shape, values, num_classes, **options):
    tensor = TensorData("scores", datatype, shape, array(code, values).tobytes())
    result = classify(tensor, num_classes, model(**options))
    assert (result.name, result.datatype) == ("scores", "BYTES")
    count = result.shape[0] * result.shape[1] if len(result.shape) == 2 else result.shape[0]
    return result.shape, [each.decode() for each in split_elements(result.data, count)]


@pytest.mark.parametrize(
    ("datatype", "code", "shape", "values", "num_classes", "options", "expected"),
    [
        ("FP32", "f", (1, 4), [0.1, 0.2, 0.3, 0.9], 2, {"has_batches": True}, ((1, 2), ["0.900000:3", "0.300000:2"])),
        ("FP32", "f", (2, 2), [1, 2, 4, 3], 1, {"has_batches": True}, ((2, 1), ["2.000000:1", "4.000000:0"])),
        ("FP32", "f", (2, 2), [1, 2, 4, 3], 1, {"has_batches": False}, ((1,), ["4.000000:2"])),
        ("INT32", "i", (3,), [5, 5, 6], 9, {"has_batches": False}, ((3,), ["6:2", "5:0", "5:1"])),
        ("UINT8", "B", (1, 2), [7, 255], 1, {"has_batches": True, "labels": ("a", "b")}, ((1, 1), ["255:1:b"])),
        (
            "INT64",
            "q",
            (3,),
            [-1, -3, -2],
            3,
            {"has_batches": False, "labels": ("a",)},
            ((3,), ["-1:0:a", "-2:2", "-3:1"]),
        ),
        (
            "FP64",
            "d",
            (2,),
            [1e-9, 1e20],
            2,
            {"has_batches": False},
            ((2,), ["100000000000000000000.000000:1", "0.000000:0"]),
        ),
        ("FP32", "f", (0, 4), [], 2, {"has_batches": True}, ((0,), [])),
    ],
)
def test_the_best_classes_of_each_batch_element(datatype, code, shape, values, num_classes, options, expected):
    """Classes are sorted by value, equal ones by index, and have labels where given. There are no more classes than
    values."""
    assert reported(datatype, code, shape, values, num_classes, **options) == expected


@pytest.mark.parametrize("datatype", ["BYTES", "FP16", "BF16", "BOOL"])
def test_what_cannot_be_compared_has_no_classes(datatype):
    """Triton's text names the datatype."""
    with pytest.raises(EngineError, match=f"unsupported type '{datatype}'"):
        classify(TensorData("x", datatype, (1,), b"\0\0"), 1, model(False))
