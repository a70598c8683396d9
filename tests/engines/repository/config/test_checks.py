"""Configurations that are refused, with Triton's texts."""

import pytest

from engines.repository.config import ConfigError, check, check_tensors, read, set_defaults

PYTHON = 'name: "m" backend: "python" '
START = 'control_input [ { name: "S", control [ { kind: CONTROL_SEQUENCE_START, %s } ] } ]'
CORRELATION = 'control_input [ { name: "C", control [ { kind: CONTROL_SEQUENCE_CORRID, %s } ] } ]'


def batching(text: str) -> str:
    return f"{PYTHON} max_batch_size: 8 dynamic_batching {{ {text} }}"


def sequences(text: str) -> str:
    return f"{PYTHON} max_batch_size: 8 sequence_batching {{ {text} }}"


WRONG = [
    ('backend: "python"', "model configuration must specify 'name'"),
    ('name: "m"', "unexpected platform type '' for m"),
    ('name: "m" platform: "what"', "unexpected platform type 'what' for m"),
    (
        'name: "m" platform: "ensemble" backend: "python"',
        "Ensemble model 'm' must have platform type 'ensemble' and empty backend type",
    ),
    (
        'name: "m" platform: "tensorrt_plan" backend: "pytorch"',
        "unexpected 'platform' and 'backend' pair, got:tensorrt_plan, pytorch",
    ),
    (
        'name: "m" platform: "ensemble"',
        "ensemble scheduling must be set for ensemble m whose platform is ensemble",
    ),
    (PYTHON + "max_batch_size: -1", "'max_batch_size' must be non-negative value for m"),
    (batching("preferred_batch_size: [ 0 ]"), "dynamic batching preferred size must be positive for m"),
    (batching("preferred_batch_size: [ 9 ]"), "dynamic batching preferred size must be <= max batch size for m"),
    (batching("priority_levels: 2"), "default priority level must be in range [1, 2] for m"),
    (
        batching("priority_levels: 2 default_priority_level: 1 priority_queue_policy { key: 3 value { } }"),
        "priority queue policy must have priority level in range [1, 2] for m",
    ),
    (
        batching("preserve_ordering: true priority_levels: 2 default_priority_level: 1"),
        "Only one priority level is allowed when 'preserve_ordering' is true for m",
    ),
    (
        batching(
            "preserve_ordering: true default_queue_policy { timeout_action: DELAY default_timeout_microseconds: 1 }"
        ),
        "Queue policy can not have DELAY as timeout action when 'preserve_ordering' is true for m",
    ),
    (
        sequences("") + "response_cache { enable: true }",
        "Response Cache does not currently support model m with sequence batching scheduler. "
        "Please disable the response cache.",
    ),
    (
        sequences("control_input [ { } ]"),
        "sequence batching control tensor must have a name for m",
    ),
    (
        sequences('control_input [ { name: "S" }, { name: "S" } ]'),
        "sequence batching control tensor 'S' is specified for multiple control kinds for m",
    ),
    (
        sequences(START % ""),
        "sequence batching must specify either 'int32_false_true', 'fp32_false_true' or 'bool_false_true' for "
        "CONTROL_SEQUENCE_START for m",
    ),
    (
        sequences(START % "int32_false_true: [ 0, 1 ], fp32_false_true: [ 0, 1 ]"),
        "sequence batching specifies more than one from 'int32_false_true', 'fp32_false_true' and 'bool_false_true' "
        "for CONTROL_SEQUENCE_START for m",
    ),
    (
        sequences(START % "fp32_false_true: [ 0 ]"),
        "sequence batching control 'fp32_false_true' must have exactly 2 entries for CONTROL_SEQUENCE_START for m",
    ),
    (
        sequences(
            START
            % "bool_false_true: [ false, true ]"
            + 'control_input [ { name: "T", control [ { kind: CONTROL_SEQUENCE_START, '
            "bool_false_true: [ false, true ] } ] } ]"
        ),
        "sequence batching specifies multiple CONTROL_SEQUENCE_START tensors for m",
    ),
    (
        sequences(CORRELATION % "int32_false_true: [ 0, 1 ]"),
        "sequence batching must not specify either 'int32_false_true', 'fp32_false_true' or 'bool_false_true' for "
        "CONTROL_SEQUENCE_CORRID for m",
    ),
    (
        sequences(CORRELATION % "data_type: TYPE_FP32"),
        "unexpected data type for control CONTROL_SEQUENCE_CORRID for m. Allowed data types are TYPE_UINT64, "
        "TYPE_INT64, TYPE_UINT32, TYPE_INT32 and TYPE_STRING",
    ),
    (
        sequences("oldest { preferred_batch_size: [ -1 ] }"),
        "sequence batching preferred batch size must be positive for m",
    ),
    (
        sequences("oldest { preferred_batch_size: [ 9 ] }"),
        "sequence batching preferred batch size must be <= max batch size for m",
    ),
    (
        sequences("direct { minimum_slot_utilization: 1.5 }"),
        "sequence batching minimum slot utilization must be in range (0.0, 1.0] for m",
    ),
    (
        PYTHON + "model_transaction_policy { decoupled: true } response_cache { enable: true }",
        "Response Cache does not currently support model m with 'decoupled' transaction policy. "
        "Please disable the response cache.",
    ),
    (PYTHON + 'input [ { name: "x" }, { name: "x" } ]', "model input 'x' is specified more than once for m"),
    (PYTHON + 'output [ { name: "y" }, { name: "y" } ]', "model output 'y' is specified more than once for m"),
    (
        PYTHON + 'model_repository_agents { agents [ { name: "checksum" } ] }',
        "model repository agents are not supported; take them out of the configuration of m",
    ),
]

RIGHT = [
    PYTHON,
    'name: "m" backend: "anything" platform: "whatever"',
    batching("preferred_batch_size: [ 1, 8 ]"),
    batching("priority_levels: 2 default_priority_level: 2 priority_queue_policy { key: 2 value { } }"),
    batching("preserve_ordering: true default_queue_policy { default_timeout_microseconds: 1 }"),
    sequences(START % "int32_false_true: [ 0, 1 ]"),
    sequences(CORRELATION % "data_type: TYPE_STRING"),
    sequences("direct { minimum_slot_utilization: 1.0 }"),
]


@pytest.mark.parametrize("text, error_text", WRONG)
def test_what_is_refused(text: str, error_text: str) -> None:
    """The text is Triton's."""
    config = read(text)
    set_defaults(config)
    with pytest.raises(ConfigError) as caught:
        check(config)
    assert caught.value.message == error_text


@pytest.mark.parametrize("text", RIGHT)
def test_what_is_not_refused(text: str) -> None:
    """Configurations that Triton accepts pass the check unchanged."""
    config = read(text)
    set_defaults(config)
    before = config.SerializeToString(deterministic=True)
    check(config)
    assert config.SerializeToString(deterministic=True) == before


def tensor(text: str, kind: str = "input", more: str = "max_batch_size: 4") -> str:
    return f'{PYTHON} {more} {kind} [ {{ name: "x" data_type: TYPE_FP32 {text} }} ]'


SIZES = "dimension must be integer >= 1, or -1 to indicate a variable-size dimension"
WRONG_TENSORS = [
    (PYTHON + "input [ { } ]", "model input must specify 'name' for m"),
    (PYTHON + 'output [ { name: "x" dims: [ 1 ] } ]', "model output 'x' must specify 'data_type' for m"),
    (tensor(""), "model input 'x' must specify 'dims' for m"),
    (tensor("dims: [ 0 ]"), f"model input 'x' {SIZES} for m"),
    (tensor("dims: [ -2 ]", "output"), f"model output 'x' {SIZES} for m"),
    (
        tensor("dims: [ 1 ] reshape { }", more=""),
        "model input 'x' cannot have empty reshape for non-batching model as scalar tensors are not supported for m",
    ),
    (tensor("dims: [ 4 ] reshape { shape: [ 5 ] }"), "model input 'x' has different size for dims and reshape for m"),
    (tensor("dims: [ 4 ] reshape { }"), "model input 'x' has different size for dims and reshape for m"),
    (
        tensor("dims: [ 4 ] reshape { shape: [ 0 ] }"),
        "model input 'x' reshape dimensions must be integer >= 1, or -1 to indicate a variable-size dimension for m",
    ),
    (
        tensor("dims: [ -1, -1 ] reshape { shape: [ -1 ] }"),
        "model input 'x' has different number of variable-size dimensions for dims and reshape for m",
    ),
    (
        tensor("dims: [ 2, 4, -1, 6 ] reshape { shape: [ 8, -1, 5 ] }"),
        "model input 'x' has different size for dims and reshape for m",
    ),
    (tensor("dims: [ 1, 2 ] format: FORMAT_NHWC"), "model input NHWC/NCHW require 3 dims for m"),
    (tensor("dims: [ 1 ] is_shape_tensor: true"), "shape tensors are only supported for TensorRT platform for m"),
    (
        tensor("dims: [ 1 ] is_non_linear_format_io: true", "output"),
        "Non-linear IO format is only supported for the TensorRT platform for m",
    ),
    (
        tensor("dims: [ 1 ]") + "batch_input [ { kind: BATCH_ELEMENT_COUNT data_type: TYPE_INT32 } ]",
        "batch input kind 'BATCH_ELEMENT_COUNT' expects 1 source input, got 0 for m",
    ),
    (
        tensor("dims: [ 1 ]") + 'batch_input [ { data_type: TYPE_INT32 source_input: "z" } ]',
        "unknown source input name 'z' for m",
    ),
    (
        tensor("dims: [ 1 ]") + 'batch_input [ { data_type: TYPE_INT64 source_input: "x" } ]',
        "batch input data type must be TYPE_INT32 or TYPE_FP32 for m",
    ),
    (
        tensor("dims: [ 1 ]") + 'batch_output [ { source_input: "x" target_name: "y" } ]',
        "unknown target output name 'y' for m",
    ),
    (
        tensor("dims: [ 1 ]", "output")
        + 'input [ { name: "i" data_type: TYPE_FP32 dims: [ 1 ] } ] '
        + 'batch_output [ { source_input: "i" target_name: [ "x", "x" ] } ]',
        "target output name 'x' can only be specified once for m",
    ),
]


@pytest.mark.parametrize("text, error_text", WRONG_TENSORS)
def test_what_is_refused_of_tensors(text: str, error_text: str) -> None:
    """The text is Triton's."""
    with pytest.raises(ConfigError) as caught:
        check_tensors(read(text))
    assert caught.value.message == error_text


@pytest.mark.parametrize(
    "text",
    [
        tensor("dims: [ 2, 4, -1, 6 ] reshape { shape: [ 8, -1, 1, 6 ] }"),
        tensor("dims: [ -1 ] reshape { shape: [ -1 ] }"),
        tensor("dims: [ 1 ] reshape { }"),
        tensor("dims: [ 4, -1 ] reshape { shape: [ 2, 2, -1 ] }", "output"),
        tensor("dims: [ 3, 2, 2 ] format: FORMAT_NCHW"),
    ],
)
def test_tensors_that_are_not_refused(text: str) -> None:
    """A reshape keeps the number of elements between its variable sizes; an empty one is a single element."""
    config = read(text)
    check_tensors(config)
    check_tensors(config, is_complete=False)


@pytest.mark.parametrize("missing", ['name: "x" dims: [ 1 ]', 'name: "x" data_type: TYPE_FP32', 'name: "x"'])
def test_what_the_model_may_still_complete(missing: str) -> None:
    """A missing datatype or missing dims are an error only after the model has completed them."""
    config = read(f"{PYTHON} input [ {{ {missing} }} ]")
    check_tensors(config, is_complete=False)
    with pytest.raises(ConfigError, match="must specify"):
        check_tensors(config)


def test_what_no_model_completes_is_refused_at_once() -> None:
    """A dimension of 0 is refused also in an incomplete configuration."""
    with pytest.raises(ConfigError, match="dimension must be integer"):
        check_tensors(read(tensor("dims: [ 0 ]")), is_complete=False)
