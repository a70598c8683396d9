"""Requests are checked as Triton checks them, with its texts."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from engines.core.errors import EngineError, ErrorCode
from engines.core.messages import InferRequest, SharedMemory, TensorData, WantedOutput
from engines.host.request_validation import RequestCheck
from tests.engines.host.parts import config_of, ints

ADDER = config_of("""
    name: "adder" max_batch_size: 8
    input [ { name: "a" data_type: TYPE_INT32 dims: [ -1 ] }, { name: "b" data_type: TYPE_INT32 dims: [ -1 ] } ]
    output [ { name: "sum" data_type: TYPE_INT32 dims: [ -1 ] } ]
""")
TEXTS = config_of("""
    name: "texts"
    input [ { name: "text" data_type: TYPE_STRING dims: [ -1 ] } ]
    output [ { name: "out" data_type: TYPE_STRING dims: [ -1 ] } ]
""")
OPTIONAL = config_of("""
    name: "optional"
    input [
        { name: "x" data_type: TYPE_FP32 dims: [ 2 ] },
        { name: "y" data_type: TYPE_FP32 dims: [ 2 ] optional: true },
        { name: "z" data_type: TYPE_FP32 dims: [ 2 ] optional: true }
    ]
""")
GRID = config_of('name: "grid" input [ { name: "x" data_type: TYPE_FP32 dims: [ -1, -1 ] } ]')
UNKNOWN = "[request id: <id_unknown>] "
BATCH_NOTE = (
    "NOTE: Setting a non-zero max_batch_size in the model config requires a batch dimension to be prepended to each "
    "input shape. If you want to specify the full shape including the batch dim in your input dims config, try setting "
    "max_batch_size to zero. See the model configuration docs for more info on max_batch_size."
)


def floats(name: str, shape: tuple[int, ...] = (2,)) -> TensorData:
    return TensorData(name, "FP32", shape, bytes(8))


def text(data: bytes, *shape: int) -> InferRequest:
    return InferRequest("texts", inputs=(TensorData("text", "BYTES", shape, data),))


def adder(*inputs: TensorData, id: str = "", outputs: tuple[str, ...] = ()) -> InferRequest:
    return InferRequest("adder", id=id, inputs=inputs, outputs=tuple(WantedOutput(name) for name in outputs))


A, B = ints("a", 1), ints("b", 1)

# As tritonserver 2.51 answered these, text for text.
REFUSED = [
    (
        ADDER,
        adder(A),
        UNKNOWN + "expected 2 inputs but got 1 inputs for model 'adder'. Got input(s) ['a'], but missing required "
        "input(s) ['b']. Please provide all required input(s).",
    ),
    (
        ADDER,
        adder(),
        UNKNOWN + "expected 2 inputs but got 0 inputs for model 'adder'. Got input(s) [], but missing required "
        "input(s) ['a','b']. Please provide all required input(s).",
    ),
    (ADDER, adder(A, ints("zz", 1)), "unexpected inference input 'zz' for model 'adder'"),
    (
        ADDER,
        adder(A, B, ints("zz", 1)),
        UNKNOWN + "expected 2 inputs but got 3 inputs for model 'adder'. Got input(s) ['zz','b','a'], but missing "
        "required input(s) ]. Please provide all required input(s).",
    ),
    (ADDER, adder(A, A), UNKNOWN + "input 'a' already exists in request"),
    (
        GRID,
        InferRequest("grid", inputs=(TensorData("x", "FP32", (-2, -2), bytes(16)),)),
        UNKNOWN + "All input dimensions should be specified for input 'x' for model 'grid', got [-2,-2]",
    ),
    (
        ADDER,
        adder(TensorData("a", "FP32", (1, 1), bytes(4)), B),
        UNKNOWN + "inference input 'a' data-type is 'FP32', but model 'adder' expects 'INT32'",
    ),
    (
        ADDER,
        adder(ints("a", *range(4), shape=(1, 2, 2)), ints("b", *range(4), shape=(1, 2, 2)), id="rid"),
        "[request id: rid] unexpected shape for input 'b' for model 'adder'. Expected [-1,-1], got [1,2,2]. "
        + BATCH_NOTE,
    ),
    (
        ADDER,
        adder(ints("a", 1, shape=()), ints("b", 1, shape=()), id="rid"),
        "[request id: rid] input 'b' has no shape but model requires batch dimension for 'adder'",
    ),
    (
        ADDER,
        adder(A, ints("b", 1, 1, shape=(2, 1))),
        UNKNOWN + "input 'a' batch size does not match other inputs for 'adder'",
    ),
    (
        ADDER,
        adder(*(ints(name, *range(9), shape=(9, 1)) for name in "ab")),
        UNKNOWN + "inference request batch-size must be <= 8 for 'adder'",
    ),
    (
        ADDER,
        adder(*(ints(name, shape=(0, 1)) for name in "ab")),
        UNKNOWN + "input byte size mismatch for input 'b' for model 'adder'. Expected 4, got 0",
    ),
    (ADDER, adder(A, B, outputs=("qq",)), "unexpected inference output 'qq' for model 'adder'"),
    (
        ADDER,
        adder(TensorData("a", "INT32", (1, 1), bytes(3)), B),
        UNKNOWN + "input byte size mismatch for input 'a' for model 'adder'. Expected 4, got 3",
    ),
    (
        ADDER,
        adder(ints("a", 1, shape=(1, -1)), B),
        UNKNOWN + "All input dimensions should be specified for input 'a' for model 'adder', got [1,-1]",
    ),
    (
        ADDER,
        adder(ints("a", 1, shape=(-1, 4)), B),
        UNKNOWN + "input 'a' batch size does not match other inputs for 'adder'",
    ),
    (
        TEXTS,
        text(b"\1\0\0", 1),
        UNKNOWN + "incomplete string length indicator for inference input 'text' for model 'texts', expecting 4 bytes "
        "but only 3 bytes available. Please make sure the string length indicator is in one buffer.",
    ),
    (
        TEXTS,
        text(b"\1\0\0\0", 1),
        "incomplete string data for inference input 'text', expecting string of length 1 but only 0 bytes available",
    ),
    (
        TEXTS,
        text(b"\1\0\0\0a\1\0\0\0a", 1),
        UNKNOWN + "unexpected number of string elements 2 for inference input 'text' for model 'texts', expecting 1",
    ),
    (
        TEXTS,
        text(b"\1\0\0\0a", 2),
        UNKNOWN + "expected 2 string elements for inference input 'text' for model 'texts', got 1",
    ),
    (
        TEXTS,
        text(b"\x09\0\0\0a", 1),
        "incomplete string data for inference input 'text', expecting string of length 9 but only 1 bytes available",
    ),
    (TEXTS, text(b"", 1), UNKNOWN + "expected 1 string elements for inference input 'text' for model 'texts', got 0"),
    (
        OPTIONAL,
        InferRequest("optional"),
        UNKNOWN + "expected number of inputs between 1 and 3 but got 0 inputs for model 'optional'. Got input(s) [], "
        "but missing required input(s) ['x']. Please provide all required input(s).",
    ),
    (
        OPTIONAL,
        InferRequest("optional", inputs=(floats("x", (2, 1)),)),
        UNKNOWN + "unexpected shape for input 'x' for model 'optional'. Expected [2], got [2,1]. ",
    ),
]


@pytest.mark.parametrize("config, request_, text_", REFUSED)
def test_a_wrong_request_is_reported_as_triton_reports_it(config: object, request_: InferRequest, text_: str) -> None:
    """The message is Triton's, to the letter, and the code INVALID_ARG."""
    with pytest.raises(EngineError) as raised:
        RequestCheck(config)(request_)
    assert (raised.value.message, raised.value.code) == (text_, ErrorCode.INVALID_ARG)


TAKEN = [
    (ADDER, adder(A, B), 1),
    (ADDER, adder(B, A, outputs=("sum", "sum")), 1),
    (ADDER, adder(*(ints(name, *range(6), shape=(3, 2)) for name in "ab")), 3),
    (ADDER, adder(*(ints(name, shape=(2, 0)) for name in "ab")), 2),
    (ADDER, adder(A, TensorData("b", "INT32", (1, 1), SharedMemory("/b", 0, 4))), 1),
    (ADDER, adder(A, TensorData("b", "INT32", (1, 1), memoryview(bytes(4)))), 1),
    (TEXTS, text(b"\1\0\0\0a", 1), 1),
    (TEXTS, text(b"\1\0\0\0a\0\0\0\0", 2), 1),
    (TEXTS, text(b"", 0), 1),
    (TEXTS, InferRequest("texts", inputs=(TensorData("text", "BYTES", (3,), SharedMemory("/t", 0, 99)),)), 1),
    (OPTIONAL, InferRequest("optional", inputs=(floats("x"), floats("z"))), 1),
    (OPTIONAL, InferRequest("optional", inputs=(floats("y"),)), 1),  # Triton only counts the inputs
]


@pytest.mark.parametrize("config, request_, batch_size", TAKEN)
def test_a_request_that_fits_has_a_batch_size(config: object, request_: InferRequest, batch_size: int) -> None:
    """The batch size is the first axis for a model that batches, and 1 for others."""
    assert RequestCheck(config)(request_) == batch_size


SHAPES = st.lists(st.integers(-1, 3), max_size=3).map(tuple)
TENSORS = st.builds(
    TensorData,
    st.sampled_from(["a", "b", "c"]),
    st.sampled_from(["INT32", "FP32"]),
    SHAPES,
    st.integers(0, 12).map(lambda count: bytes(4 * count)),
)


@given(st.lists(TENSORS, max_size=3).map(tuple))
@example((ints("a", shape=(0, 1)), ints("b", 1, 2, 3, shape=(3, 1))))
def test_the_quick_look_agrees_with_the_thorough_one(inputs: tuple[TensorData, ...]) -> None:
    """A request that passes the fast check also passes Triton's steps, with the same batch size."""
    check = RequestCheck(ADDER)
    request = adder(*inputs)
    quick = check._batch_size(request)
    if quick is not None:
        assert check._explain(request) == quick


def test_shape_tensors_have_no_batch_axis() -> None:
    """A TensorRT shape tensor has no batch axis, whatever the batch size."""
    config = config_of("""
        name: "shaped" max_batch_size: 4
        input [
            { name: "x" data_type: TYPE_INT32 dims: [ 1 ] },
            { name: "s" data_type: TYPE_INT32 dims: [ 2 ] is_shape_tensor: true }
        ]
    """)
    check = RequestCheck(config)
    inputs = (ints("x", 1, 2, 3, shape=(3, 1)), ints("s", 5, 6, shape=(2,)))
    assert check(InferRequest("shaped", inputs=inputs)) == 3
