"""Functions of jax as models: few shapes, states of sequences, and the same results as jax."""

import numpy as np
import pytest

jax = pytest.importorskip("jax")

from engines.backends import jax as backend_of_jax  # noqa: E402
from engines.backends.jax import fill, nested  # noqa: E402
from engines.core.errors import EngineError  # noqa: E402
from tests.engines.backends.support import Request, answers, configuration, spec  # noqa: E402

MODEL = """
import jax.numpy as jnp

shapes = []

def apply(params, inputs):
    shapes.append(inputs["x"].shape)  # once for each compilation
    return {"y": jnp.tanh(inputs["x"] @ params["layer"]["w"] + params["layer"]["b"])}
"""
CONFIG = """
name: "net" max_batch_size: 6
input { name: "x" data_type: TYPE_FP32 dims: 3 } output { name: "y" data_type: TYPE_FP32 dims: 2 }
"""
RANDOM = np.random.default_rng(0)
PARAMS = {"layer/w": RANDOM.standard_normal((3, 2), np.float32), "layer/b": RANDOM.standard_normal(2, np.float32)}


@pytest.fixture
def start(tmp_path):
    def start(model=MODEL, config=CONFIG, save=lambda directory: np.savez(directory / "model.npz", **PARAMS)):
        (tmp_path / "1").mkdir(exist_ok=True)
        (tmp_path / "1" / "model.py").write_text(model)
        save(tmp_path / "1")
        backend = backend_of_jax.create()
        backend.initialize(spec(tmp_path, configuration(config)))
        return backend

    return start


def test_a_batch_answers_as_jax_does(start):
    x = RANDOM.standard_normal((5, 3), np.float32)
    first, second = answers(start(), {"x": x[:2]}, {"x": x[2:]})
    expected = np.tanh(x @ PARAMS["layer/w"] + PARAMS["layer/b"])
    np.testing.assert_allclose(np.concatenate([first.answer["y"], second.answer["y"]]), expected, rtol=1e-5)


def test_parameters_may_be_safetensors(start):
    files = pytest.importorskip("safetensors.numpy")
    backend = start(save=lambda directory: files.save_file(PARAMS, directory / "model.safetensors"))
    (request,) = answers(backend, {"x": np.zeros((1, 3), np.float32)})
    np.testing.assert_allclose(request.answer["y"], [np.tanh(PARAMS["layer/b"])], rtol=1e-5)


def test_all_batch_sizes_are_compiled_into_few_buckets_when_the_model_is_loaded(start):
    """Batches of up to six rows run as 1, 2, 4 or 6, and no request waits for a compilation."""
    import sys

    backend = start()
    shapes = sys.modules["_model_net"].shapes
    assert shapes == [(1, 3), (2, 3), (4, 3), (6, 3)]
    for rows in range(1, 7):
        (request,) = answers(backend, {"x": np.ones((rows, 3), np.float32)})
        assert request.answer["y"].shape == (rows, 2)
    assert len(shapes) == 4


def test_a_sequence_carries_its_state_as_inputs_and_outputs(start):
    """Two sequences step together, each with its own state, which the client does not request."""
    model = """
def apply(params, inputs):
    total = inputs["total"] + inputs["x"]
    return {"y": total * 10, "total_out": total}
"""
    config = """
        name: "sum" max_batch_size: 4
        sequence_batching {
          oldest { max_candidate_sequences: 4 }
          state { input_name: "total" output_name: "total_out" data_type: TYPE_INT32 dims: 1 }
        }
        input { name: "x" data_type: TYPE_INT32 dims: 1 } output { name: "y" data_type: TYPE_INT32 dims: 1 }
        """
    backend = start(model, config)
    states = {1: np.zeros((1, 1), "i4"), 2: np.full((1, 1), 100, "i4")}
    seen = []
    for x in (1, 2, 3):
        requests = [
            Request({"x": np.full((1, 1), x, "i4"), "total": states[key]}, ["y"], sequence_id=key) for key in states
        ]
        backend.execute(requests)
        states = {request.sequence_id: request.answer["total_out"] for request in requests}
        seen.append([request.answer["y"].item() for request in requests])
    assert seen == [[10, 1010], [30, 1030], [60, 1060]]


def test_padded_inputs_let_lengths_batch_together(start):
    """Inputs of lengths 3 and 4 run as one batch: the model ignores the padding value."""
    model = """
import jax.numpy as jnp
shapes = []
def apply(params, inputs):
    shapes.append(inputs["tokens"].shape)
    return {"count": jnp.sum(inputs["tokens"] >= 0, axis=1, keepdims=True)}
"""
    config = """
        name: "counter" max_batch_size: 4
        input { name: "tokens" data_type: TYPE_INT32 dims: -1 } output { name: "count" data_type: TYPE_INT32 dims: 1 }
        parameters { key: "PADDED_INPUTS" value { string_value: '{"tokens": -1}' } }
        """
    import sys

    first, second = answers(start(model, config), {"tokens": np.ones((1, 3), "i4")}, {"tokens": np.ones((1, 4), "i4")})
    assert (first.answer["count"].tolist(), second.answer["count"].tolist()) == ([[3]], [[4]])
    assert sys.modules["_model_counter"].shapes == [(2, 4)]


WIDE = """
name: "wide" max_batch_size: 2
input { name: "x" data_type: TYPE_INT64 dims: 1 } output { name: "y" data_type: TYPE_INT64 dims: 1 }
"""
ADD_ONE = "def apply(params, inputs):\n    return {'y': inputs['x'] + 1}\n"


def test_64_bits_outside_are_32_inside(start):
    """A number that does not fit the model's dtype fails its request."""
    good, bad = answers(start(ADD_ONE, WIDE), {"x": np.array([[7]])}, {"x": np.array([[1 << 40]])})
    assert (good.answer["y"].dtype, good.answer["y"].tolist()) == (np.int64, [[8]])
    assert bad.error is not None
    assert bad.error.message == "input 'x' does not fit 32 bits: parameter ENABLE_X64 lets jax compute with 64"


def test_bfloat16_goes_through_as_its_bits(start):
    config = """
        name: "half" input { name: "x" data_type: TYPE_BF16 dims: 2 } output { name: "y" data_type: TYPE_BF16 dims: 2 }
        """
    (request,) = answers(start(ADD_ONE, config), {"x": np.array([0x3F80, 0x4040], "u2")})
    assert request.answer["y"].tolist() == [0x4000, 0x4080]  # 1 and 3 become 2 and 4


@pytest.mark.parametrize(
    ("model", "config", "message"),
    [
        ("x = 1", CONFIG, "has no function apply(params, inputs)"),
        ("import nothing_of_this_name", CONFIG, "failed to load model 'net': ModuleNotFoundError"),
        ("def apply(params, inputs): return 1", CONFIG, "apply has to return a dictionary of outputs, not"),
        (
            MODEL,
            CONFIG.replace("TYPE_FP32 dims: 3", "TYPE_STRING dims: 3"),
            "'x' is of strings, which jax does not have",
        ),
        (
            MODEL,
            CONFIG + 'parameters { key: "PADDED_INPUTS" value { string_value: "x" } }',
            "parameter 'PADDED_INPUTS' is x, and has to be a JSON object of numbers by input",
        ),
    ],
)
def test_a_failed_load_has_a_reason(start, model, config, message):
    with pytest.raises(EngineError) as error:
        start(model, config)
    assert message in error.value.message


def test_a_function_cannot_complete_a_configuration(tmp_path):
    with pytest.raises(EngineError, match="has to say its inputs and outputs"):
        backend_of_jax.complete(configuration('name: "net"'), tmp_path)


@pytest.mark.parametrize(
    ("shape", "dims", "filled"), [((1, 5), (-1,), (1, 8)), ((2, 1), (-1,), (2, 1)), ((1, 3, 2), (-1, 2), (1, 4, 2))]
)
def test_open_axes_are_filled_to_a_power_of_two(shape, dims, filled):
    assert fill(np.zeros(shape), dims, -1, 1).shape == filled


def test_slashes_in_names_are_branches():
    assert nested({"a/b/c": 1, "a/d": 2, "e": 3}) == {"a": {"b": {"c": 1}, "d": 2}, "e": 3}
