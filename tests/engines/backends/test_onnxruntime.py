"""ONNX models: completed, checked and run as Triton's backend does, with onnxruntime's own answers."""

from pathlib import Path

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")
ort = pytest.importorskip("onnxruntime")

from onnx import TensorProto, helper  # noqa: E402

from engines.backends import onnxruntime  # noqa: E402
from engines.backends.onnxruntime import providers, sessions  # noqa: E402
from engines.backends.onnxruntime.providers import cached  # noqa: E402
from engines.core.errors import EngineError  # noqa: E402
from tests.engines.backends.support import answers, configuration, spec  # noqa: E402


@pytest.fixture
def saved(tmp_path):
    """`saved(nodes, inputs, outputs)`: the directory of a model, version 1. Tensors are (name, type, shape)."""

    def saved(nodes, inputs, outputs, initializers=()):
        graph = helper.make_graph(
            [helper.make_node(*node[:3], **(node[3] if len(node) > 3 else {})) for node in nodes],
            "graph",
            [helper.make_tensor_value_info(*tensor) for tensor in inputs],
            [helper.make_tensor_value_info(*tensor) for tensor in outputs],
            list(initializers),
        )
        (tmp_path / "1").mkdir(exist_ok=True)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
        onnx.save(model, tmp_path / "1" / "model.onnx")
        return tmp_path

    return saved


WEIGHT = np.random.default_rng(0).standard_normal((3, 2)).astype(np.float32)


@pytest.fixture
def linear(saved):
    return saved(
        [("MatMul", ["x", "w"], ["y"])],
        [("x", TensorProto.FLOAT, ["rows", 3])],
        [("y", TensorProto.FLOAT, ["rows", 2])],
        [helper.make_tensor("w", TensorProto.FLOAT, (3, 2), WEIGHT.tobytes(), raw=True)],
    )


def loaded(directory, text='name: "net"', **more):
    config = configuration(text)
    onnxruntime.complete(config, directory)
    backend = onnxruntime.create()
    backend.initialize(spec(directory, config, **more))
    return backend


def test_a_configuration_is_completed_from_the_model(linear):
    """An open first axis is the batch: at most four, batched dynamically, unless configured."""
    config = configuration('name: "net"')
    onnxruntime.complete(config, linear)
    tensors = """
        input { name: "x" data_type: TYPE_FP32 dims: 3 } output { name: "y" data_type: TYPE_FP32 dims: 2 }
        """
    assert config == configuration('name: "net" max_batch_size: 4 dynamic_batching {}' + tensors)
    config = configuration('name: "net" max_batch_size: 16 sequence_batching {}')
    onnxruntime.complete(config, linear, {"default-max-batch-size": "2"})
    assert config == configuration('name: "net" max_batch_size: 16 sequence_batching {}' + tensors)
    config = configuration('name: "net"')
    onnxruntime.complete(config, linear, {"default-max-batch-size": "0"})
    assert [list(tensor.dims) for tensor in (*config.input, *config.output)] == [[-1, 3], [-1, 2]]


def test_a_model_with_a_fixed_first_axis_does_not_batch(saved):
    tensors = [("x", TensorProto.INT64, [2, "n"])], [("y", TensorProto.INT64, [2, "n"])]
    directory = saved([("Identity", ["x"], ["y"])], *tensors)
    config = configuration('name: "net"')
    onnxruntime.complete(config, directory)
    assert config == configuration(
        """name: "net" input { name: "x" data_type: TYPE_INT64 dims: [ 2, -1 ] }
        output { name: "y" data_type: TYPE_INT64 dims: [ 2, -1 ] }"""
    )
    with pytest.raises(EngineError, match="autofill failed for model 'net': model does not support batching"):
        onnxruntime.complete(configuration('name: "net" max_batch_size: 3'), directory)


def test_a_row_of_scalars_is_reshaped(saved):
    directory = saved(
        [("Neg", ["x"], ["y"])], [("x", TensorProto.FLOAT, ["n"])], [("y", TensorProto.FLOAT, ["n"])]
    )  # fmt: skip
    config = configuration('name: "net"')
    onnxruntime.complete(config, directory)
    assert list(config.input[0].dims) == [1] and config.input[0].HasField("reshape")
    (request,) = answers(loaded(directory), {"x": np.float32([1, 2])})
    assert request.answer["y"].tolist() == [-1, -2]


def test_requests_run_as_one_batch_and_answer_as_onnxruntime_does(linear):
    backend = loaded(linear)
    x = np.random.default_rng(1).standard_normal((5, 3)).astype(np.float32)
    first, second = answers(backend, {"x": x[:2]}, {"x": x[2:]})
    straight = ort.InferenceSession(linear / "1" / "model.onnx", providers=["CPUExecutionProvider"])
    (expected,) = straight.run(None, {"x": x})
    np.testing.assert_array_equal(np.concatenate([first.answer["y"], second.answer["y"]]), expected)
    backend.finalize()


def test_the_placement_is_reported(linear):
    assert loaded(linear).placement == {
        "providers": ["CPUExecutionProvider"],
        "nodes": {"CPUExecutionProvider": {"MatMul": 1}},
    }


def test_strings_go_through_as_bytes(saved):
    tensor = (TensorProto.STRING, ["n", "m"])
    backend = loaded(saved([("Identity", ["x"], ["y"])], [("x", *tensor)], [("y", *tensor)]))
    good, bad = answers(
        backend, {"x": np.array([[b"ab", "\u00e9".encode()]], object)}, {"x": np.array([[b"\xff", b""]], object)}
    )
    assert good.answer["y"].tolist() == [[b"ab", "\u00e9".encode()]]
    assert bad.error is not None and "input 'x' has a string that is not UTF-8" in bad.error.message


def test_bfloat16_goes_through_as_its_bits(saved):
    """BF16 inputs and outputs are passed as uint16 bits: 1 and 2 become 2 and 4."""
    tensor = (TensorProto.BFLOAT16, ["n", 2])
    nodes = [("Cast", ["x"], ["f"], {"to": TensorProto.FLOAT}), ("Add", ["f", "f"], ["s"]),
             ("Cast", ["s"], ["y"], {"to": TensorProto.BFLOAT16})]  # fmt: skip
    backend = loaded(saved(nodes, [("x", *tensor)], [("y", *tensor)]))
    (request,) = answers(backend, {"x": np.array([[0x3F80, 0x4000]], "u2")})
    assert request.answer["y"].dtype == np.uint16
    assert request.answer["y"].tolist() == [[0x4000, 0x4080]]


def test_a_request_that_the_model_refuses_fails_alone(saved):
    """An index outside the table fails only its own request of the batch."""
    directory = saved(
        [("Gather", ["table", "x"], ["y"])],
        [("x", TensorProto.INT64, ["n", 1])],
        [("y", TensorProto.FLOAT, ["n", 1])],
        [helper.make_tensor("table", TensorProto.FLOAT, (2,), [5.0, 6.0])],
    )
    good, bad = answers(loaded(directory), {"x": np.array([[1]])}, {"x": np.array([[9]])})
    assert good.answer["y"].tolist() == [[6]]
    assert bad.error is not None and "onnx runtime error" in bad.error.message and "idx=9" in bad.error.message


TENSORS = """
    input { name: "x" data_type: TYPE_FP32 dims: 3 } output { name: "y" data_type: TYPE_FP32 dims: 2 }
    """
CHECKED = [
    (
        'max_batch_size: 1 input { name: "z" data_type: TYPE_FP32 dims: 3 } '
        'output { name: "y" data_type: TYPE_FP32 dims: 2 }',
        "unexpected inference input 'z', allowed inputs are: x",
    ),
    (
        'max_batch_size: 1 input { name: "x" data_type: TYPE_INT32 dims: 3 } '
        'output { name: "y" data_type: TYPE_FP32 dims: 2 }',
        "unable to load model 'net', configuration expects datatype TYPE_INT32 for input 'x', model provides TYPE_FP32",
    ),
    (
        'max_batch_size: 1 input { name: "x" data_type: TYPE_FP32 dims: [ 3, 1 ] } '
        'output { name: "y" data_type: TYPE_FP32 dims: 2 }',
        "model 'net', tensor 'x': the model expects 2 dimensions (shape [-1,3]) but the model configuration specifies "
        "3 dimensions (an initial batch dimension because max_batch_size > 0 followed by the explicit tensor shape, "
        "making complete shape [-1,3,1])",
    ),
    (
        TENSORS,
        "model 'net', tensor 'x': the model expects 2 dimensions (shape [-1,3]) but the model configuration specifies "
        "1 dimensions (shape [3])",
    ),
    (
        'max_batch_size: 1 input { name: "more" data_type: TYPE_FP32 dims: 3 }' + TENSORS,
        "unable to load model 'net', configuration expects 2 inputs, model provides 1",
    ),
    (
        'max_batch_size: 1 parameters { key: "execution_mode" value { string_value: "7" } }' + TENSORS,
        "Invalid configuration value provided. Expected values for  execution_mode are 0 or 1 but got 7 .",
    ),
]


@pytest.mark.parametrize(("text", "message"), CHECKED)
def test_a_configuration_that_is_not_the_models_does_not_load(linear, text, message):
    with pytest.raises(EngineError) as error:
        loaded(linear, 'name: "net" ' + text)
    assert error.value.message == message


@pytest.mark.parametrize(
    "extra",
    [
        'parameters { key: "intra_op_thread_count" value { string_value: "1" } }',
        'parameters { key: "execution_mode" value { string_value: "1" } } optimization { graph { level: 2 } }',
        """parameters { key: "enable_mem_arena" value { string_value: "0" } }
           parameters { key: "enable_mem_pattern" value { string_value: "false" } }
           optimization { graph { level: -1 } }""",
    ],
)
def test_session_options_change_how_it_runs_and_not_what_it_answers(linear, extra):
    (request,) = answers(loaded(linear, 'name: "net" ' + extra), {"x": np.ones((1, 3), np.float32)})
    np.testing.assert_allclose(request.answer["y"], WEIGHT.sum(0, keepdims=True), rtol=1e-5)


def test_a_model_that_is_a_directory_has_its_file_in_it(linear):
    (linear / "1" / "weights").mkdir()
    (linear / "1" / "model.onnx").rename(linear / "1" / "weights" / "model.onnx")
    backend = loaded(linear, 'name: "net" default_model_filename: "weights"')
    assert answers(backend, {"x": np.zeros((1, 3), np.float32)})[0].answer["y"].tolist() == [[0, 0]]


def test_a_file_that_is_no_model_is_a_load_error(linear):
    (linear / "1" / "model.onnx").write_bytes(b"nonsense")
    with pytest.raises(EngineError, match="onnx runtime error"):
        loaded(linear)


MAC, NVIDIA, PLAIN = (
    ["CoreMLExecutionProvider", "CPUExecutionProvider"],
    ["TensorrtExecutionProvider", "CUDAExecutionProvider", "CPUExecutionProvider"],
    ["CPUExecutionProvider"],
)
CPU = ("CPUExecutionProvider", {})


def coreml(**options):
    return ("CoreMLExecutionProvider", {"ModelFormat": "MLProgram", "MLComputeUnits": "ALL"} | options)


def cuda(**options):
    return ("CUDAExecutionProvider", {"device_id": "1"} | options)


def parameter(key, value):
    return f'parameters {{ key: "{key}" value {{ string_value: "{value}" }} }} '


TRT = """optimization { execution_accelerators { gpu_execution_accelerator {
    name: "tensorrt" parameters { key: "precision_mode" value: "FP16" }
    parameters { key: "max_workspace_size_bytes" value: "99" } } } }"""


@pytest.mark.parametrize(
    ("available", "kind", "text", "chosen"),
    [
        (PLAIN, "KIND_GPU", "", [CPU]),
        (MAC, "KIND_GPU", "", [coreml(RequireStaticInputShapes="1"), CPU]),
        (MAC, "KIND_CPU", "", [CPU]),
        (MAC, "KIND_CPU", parameter("neural_engine", "true"), [coreml(MLComputeUnits="CPUAndNeuralEngine"), CPU]),
        (MAC, "KIND_CPU", parameter("metal", "true"), [coreml(MLComputeUnits="CPUAndGPU"), CPU]),
        (
            MAC,
            "KIND_GPU",
            parameter("RequireStaticInputShapes", "1") + parameter("ModelFormat", "NeuralNetwork"),
            [coreml(RequireStaticInputShapes="1", ModelFormat="NeuralNetwork"), CPU],
        ),
        (
            MAC,
            "KIND_CPU",
            """optimization { execution_accelerators { cpu_execution_accelerator {
               name: "coreml" parameters { key: "MLComputeUnits" value: "CPUOnly" } } } }""",
            [coreml(MLComputeUnits="CPUOnly"), CPU],
        ),
        (NVIDIA, "KIND_GPU", "", [cuda(), CPU]),
        (
            NVIDIA,
            "KIND_GPU",
            parameter("arena_extend_strategy", "1"),
            [cuda(arena_extend_strategy="kSameAsRequested"), CPU],
        ),
        (
            NVIDIA,
            "KIND_GPU",
            TRT,
            [
                (
                    "TensorrtExecutionProvider",
                    {"device_id": "1", "trt_fp16_enable": "1", "trt_max_workspace_size": "99"},
                ),
                cuda(),
                CPU,
            ],
        ),
        (NVIDIA, "KIND_CPU", TRT, [CPU]),
        (NVIDIA, "KIND_GPU", parameter("EXECUTION_PROVIDERS", "CPUExecutionProvider"), [CPU]),
    ],
)
def test_providers_follow_the_configuration_the_kind_and_what_is_there(available, kind, text, chosen):
    """The execution providers of a model with fixed input shapes."""
    assert providers.choose(available, kind, 1, configuration(text)) == chosen


@pytest.mark.parametrize(
    ("text", "chosen"),
    [
        ("", [CPU]),
        (parameter("ModelFormat", "NeuralNetwork"), [CPU]),
        (parameter("RequireStaticInputShapes", "0"), [coreml(RequireStaticInputShapes="0"), CPU]),
        (parameter("metal", "true"), [coreml(MLComputeUnits="CPUAndGPU"), CPU]),
        (parameter("EXECUTION_PROVIDERS", "CoreMLExecutionProvider"), [coreml(), CPU]),
    ],
)
def test_open_shapes_stay_on_the_cpu_of_a_mac_unless_coreml_is_configured(text, chosen):
    """On KIND_GPU a model with open shapes runs on the CPU; with CoreML in its configuration it runs on CoreML."""
    assert providers.choose(MAC, "KIND_GPU", 0, configuration(text), lambda: False) == chosen


def test_cuda_takes_open_shapes():
    """Open shapes exclude CoreML, but not CUDA."""
    assert providers.choose(NVIDIA, "KIND_GPU", 1, configuration(""), lambda: False) == [cuda(), CPU]


@pytest.mark.parametrize(("shape", "provider"), [((2, 3), "CoreML"), (("rows", 3), "CPU"), ((None, 3), "CPU")])
def test_the_models_own_shapes_count(saved, monkeypatch, tmp_path, shape, provider):
    """On a Mac a model with fixed shapes gets CoreML with a cache folder, and one with open shapes the CPU."""
    monkeypatch.setenv("POINTSMAN_CACHE", str(tmp_path / "cache"))
    directory = saved(
        [("Identity", ["x"], ["y"])], [("x", TensorProto.FLOAT, shape)], [("y", TensorProto.FLOAT, shape)]
    )
    made = []

    def make(ort, path, config, chosen, *more):
        made.extend(chosen)
        return original(ort, path, config, [CPU], *more)

    original = sessions.create_session
    monkeypatch.setattr(sessions, "create_session", make)
    monkeypatch.setattr(ort, "get_available_providers", lambda: MAC)
    loaded(directory, kind="KIND_GPU")
    assert made[0][0] == f"{provider}ExecutionProvider"
    if provider == "CoreML":
        assert Path(made[0][1]["ModelCacheDirectory"]).parent == tmp_path / "cache" / "onnx-coreml"
        assert made[0][1]["RequireStaticInputShapes"] == "1"


def folder_of(path, chosen=None, version="1.23.2", here="a Mac"):
    with cached(chosen or [coreml(), CPU], path, version, lambda: here) as complete:
        assert complete[-1] == CPU
        return complete[0][1].get("ModelCacheDirectory")


def test_each_model_has_a_folder_for_what_coreml_compiles_of_it(tmp_path, monkeypatch):
    """Equal models share a cache folder wherever they are stored. Other weights, options, versions or machines have
    another."""
    monkeypatch.setenv("POINTSMAN_CACHE", str(tmp_path / "cache"))
    first, second = tmp_path / "a" / "model.onnx", tmp_path / "b" / "model.onnx"
    for path in (first, second):
        path.parent.mkdir()
        path.write_bytes(b"graph")
    folder = folder_of(first)
    assert Path(folder).is_dir()
    assert folder_of(first) == folder_of(second) == folder
    others = [folder_of(first, [coreml(MLComputeUnits="CPUOnly"), CPU]), folder_of(first, version="1.24.0")]
    others.append(folder_of(first, here="another Mac"))
    (second.parent / "weights.bin").write_bytes(b"external")
    others.append(folder_of(second))
    assert len({folder, *others}) == 5


def test_a_folder_is_named_only_where_it_is_of_use(tmp_path, monkeypatch):
    """No folder is named without CoreML, for an onnxruntime without the option, or where it cannot be created. A
    configured folder is kept."""
    monkeypatch.setenv("POINTSMAN_CACHE", str(tmp_path / "cache"))
    path = tmp_path / "model.onnx"
    path.write_bytes(b"graph")
    assert folder_of(path, [cuda(), CPU]) is None
    assert folder_of(path, [coreml(ModelCacheDirectory="/mine"), CPU]) == "/mine"
    assert folder_of(path, version="1.20.1") is None
    (tmp_path / "cache").write_text("a file")
    assert folder_of(path) is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (parameter("EXECUTION_PROVIDERS", "Warp"), "this onnxruntime has no Warp: it has CPUExecutionProvider"),
        (
            'optimization { execution_accelerators { cpu_execution_accelerator { name: "abacus" } } }',
            "unknown Execution Accelerator 'abacus' is requested",
        ),
    ],
)
def test_a_provider_that_is_not_there_is_an_error(text, message):
    with pytest.raises(EngineError) as error:
        providers.choose(PLAIN, "KIND_CPU", 0, configuration(text))
    assert error.value.message == message


@pytest.mark.metal
@pytest.mark.skipif("CoreMLExecutionProvider" not in ort.get_available_providers(), reason="needs CoreML")
def test_a_gpu_instance_runs_by_coreml_on_a_mac(linear):
    backend = loaded(linear, 'name: "net" parameters { key: "metal" value { string_value: "true" } }', kind="KIND_GPU")
    assert backend.placement["providers"][0] == "CoreMLExecutionProvider"
    (request,) = answers(backend, {"x": np.ones((1, 3), np.float32)})
    np.testing.assert_allclose(request.answer["y"], WEIGHT.sum(0, keepdims=True), rtol=1e-2)
