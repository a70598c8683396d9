"""Requests that run as one batch: each gets its own rows, and fails for its own faults."""

import numpy as np
import pytest

from engines.backends.batching import Batcher, join, power_of_two
from engines.backends.model_config import ModelSignature
from engines.core.errors import EngineError, ErrorCode
from tests.engines.backends.support import Request, configuration

DOUBLER = configuration(
    """
    name: "doubler" max_batch_size: 8
    input { name: "x" data_type: TYPE_FP32 dims: -1 }
    output { name: "twice" data_type: TYPE_FP32 dims: -1 }
    output { name: "size" data_type: TYPE_INT64 dims: 1 }
    """
)


class Doubler:
    """Doubles; refuses 13. Keeps the shapes that it ran with."""

    def __init__(self) -> None:
        self.shapes: list[tuple[int, ...]] = []

    def __call__(self, inputs):
        x = inputs["x"]
        self.shapes.append(x.shape)
        if (x == 13).any():
            raise ValueError("thirteen")
        return {"twice": 2 * x, "size": np.full((len(x), 1), x.shape[1]), "unasked": x}


def floats(*rows):
    return np.array(rows, np.float32)


def run(requests, model, config=DOUBLER, **options):
    Batcher(model, ModelSignature.of(config), **options).execute(requests)
    return requests


def test_requests_of_one_shape_run_once_and_get_their_own_rows():
    """Three requests of 1, 2 and 1 rows are one run of 4 rows."""
    model = Doubler()
    first, second, third = run(
        [Request({"x": floats([1, 2])}), Request({"x": floats([3, 4], [5, 6])}), Request({"x": floats([7, 8])})], model
    )
    assert model.shapes == [(4, 2)]
    assert first.answer["twice"].tolist() == [[2, 4]]
    assert second.answer["twice"].tolist() == [[6, 8], [10, 12]]
    assert third.answer["twice"].tolist() == [[14, 16]]
    assert second.answer["size"].tolist() == [[2], [2]]


def test_requests_of_other_shapes_run_apart():
    model = Doubler()
    first, second = run([Request({"x": floats([1, 2])}), Request({"x": floats([3])})], model)
    assert model.shapes == [(1, 2), (1, 1)]
    assert (first.answer["twice"].tolist(), second.answer["twice"].tolist()) == ([[2, 4]], [[6]])


def test_a_request_that_the_model_refuses_fails_alone():
    """A run of several that fails is run again, one by one."""
    good, bad, other = run(
        [Request({"x": floats([value])}) for value in (1, 13, 2)], Doubler(), failure="Model failure"
    )
    assert (good.answer["twice"].tolist(), other.answer["twice"].tolist()) == ([[2]], [[4]])
    assert bad.error is not None
    assert (bad.error.code, bad.error.message) == (ErrorCode.INTERNAL, "Model failure: thirteen")


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.float32(1), "input 'x' is of shape [], which is no batch"),
        (np.empty((0, 2), np.float32), "input 'x' is of shape [0, 2], which is no batch"),
        (floats([[1], [2]]), "unexpected shape for input 'x': expected [-1], got [2, 1]"),
        (np.ones((1, 2)), "input 'x' is of float64, and the model expects FP32"),
    ],
)
def test_a_wrong_input_fails_its_request_before_the_model_runs(array, message):
    model = Doubler()
    wrong, right = run([Request({"x": np.asarray(array)}), Request({"x": floats([1])})], model)
    assert wrong.error is not None
    assert (wrong.error.code, wrong.error.message) == (ErrorCode.INVALID_ARG, message)
    assert right.answer["twice"].tolist() == [[2]]
    assert model.shapes == [(1, 1)]


def test_inputs_have_to_agree_about_the_batch():
    config = configuration('max_batch_size: 4 input { name: "a" data_type: TYPE_INT8 dims: 1 }')
    (request,) = run([Request({"a": np.zeros((2, 1), "i1"), "b": np.zeros((3, 1), "i1")})], Doubler(), config)
    assert request.error is not None
    assert request.error.message == "inputs differ in their batch size: 'a' has 2, 'b' has 3"


def test_only_the_outputs_that_are_wanted_are_answered():
    a, b = run([Request({"x": floats([1])}, ["size"]), Request({"x": floats([1])})], Doubler())
    assert (sorted(a.answer), sorted(b.answer)) == (["size"], ["size", "twice"])


def test_state_outputs_are_always_made():
    """A batch returns its state outputs even if they are not requested: the host stores them for the next step."""
    config = configuration(
        """
        max_batch_size: 4
        sequence_batching { state { input_name: "s" output_name: "s_out" data_type: TYPE_INT32 dims: 1 } }
        input { name: "x" data_type: TYPE_INT32 dims: 1 } output { name: "y" data_type: TYPE_INT32 dims: 1 }
        """
    )
    request = Request({"x": np.ones((1, 1), "i4"), "s": np.ones((1, 1), "i4")}, ["y"])
    run([request], lambda inputs: {"y": inputs["x"], "s_out": inputs["x"] + inputs["s"]}, config)
    assert {name: array.tolist() for name, array in request.answer.items()} == {"y": [[1]], "s_out": [[2]]}


@pytest.mark.parametrize(
    ("outputs", "message"),
    [
        ({}, "output tensor 'y' is not found in what the model returned"),
        ({"y": np.zeros((3, 1), "i4")}, "output 'y' is of shape [3, 1], which is no batch of 2"),
        ({"y": np.zeros((2, 5), "i4")}, "unexpected shape for output 'y': expected [1], got [5]"),
        (
            {"y": np.zeros((2, 1), "f4")},
            "configuration expects datatype INT32 for output 'y', model provides float32",
        ),
    ],
)
def test_a_model_that_answers_wrongly_fails_the_request(outputs, message):
    config = configuration(
        """
        max_batch_size: 4 input { name: "x" data_type: TYPE_INT32 dims: 1 }
        output { name: "y" data_type: TYPE_INT32 dims: 1 }
        """
    )
    (request,) = run([Request({"x": np.zeros((2, 1), "i4")})], lambda inputs: outputs, config)
    assert request.error is not None
    assert (request.error.code, request.error.message) == (ErrorCode.INTERNAL, message)


def test_a_model_without_a_batch_axis_runs_each_request_by_itself():
    config = configuration(
        'input { name: "x" data_type: TYPE_FP32 dims: [ 2 ] } output { name: "twice" data_type: TYPE_FP32 dims: 2 }'
    )
    shapes = []

    def model(inputs):
        shapes.append(inputs["x"].shape)
        return {"twice": 2 * inputs["x"]}

    first, second = run([Request({"x": np.float32([1, 2])}), Request({"x": np.float32([3, 4])})], model, config)
    assert shapes == [(2,), (2,)]
    assert (first.answer["twice"].tolist(), second.answer["twice"].tolist()) == ([2, 4], [6, 8])


def test_a_batch_is_padded_to_its_bucket_invisibly():
    """Three rows run as four, the last one twice."""
    model = Doubler()
    first, second = run(
        [Request({"x": floats([1], [2])}), Request({"x": floats([3])})], model, capacity=power_of_two(8)
    )
    assert model.shapes == [(4, 1)]
    assert (first.answer["twice"].tolist(), second.answer["twice"].tolist()) == ([[2], [4]], [[6]])


@pytest.mark.parametrize(
    ("limit", "rows", "bucket"), [(8, 1, 1), (8, 3, 4), (8, 8, 8), (6, 5, 6), (6, 3, 4), (6, 9, 9)]
)
def test_buckets_are_powers_of_two_up_to_the_limit(limit, rows, bucket):
    assert power_of_two(limit)(rows) == bucket


def test_one_array_that_fills_its_room_is_not_copied():
    array = floats([1], [2])
    assert join([array], 2) is array


def test_strings_and_their_padding():
    joined = join([np.array([[b"a"]], object), np.array([[b"bc"], [b""]], object)], 4)
    assert joined.tolist() == [[b"a"], [b"bc"], [b""], [b""]]


def test_a_cancelled_request_does_not_run_unless_its_sequence_needs_the_step():
    model = Doubler()
    gone, step = run(
        [Request({"x": floats([1])}, is_cancelled=True), Request({"x": floats([2])}, is_cancelled=True, sequence_id=7)],
        model,
    )
    assert gone.error is not None and gone.error.code is ErrorCode.CANCELLED
    assert step.answer["twice"].tolist() == [[4]]


@pytest.mark.parametrize(
    "text",
    [
        'input { name: "x" data_type: TYPE_FP32 dims: -1 allow_ragged_batch: true }',
        "batch_input { kind: BATCH_ELEMENT_COUNT }",
    ],
)
def test_ragged_batches_are_refused_when_the_model_is_loaded(text):
    with pytest.raises(EngineError, match="has ragged batches") as error:
        ModelSignature.of(configuration(text))
    assert error.value.code is ErrorCode.UNSUPPORTED
