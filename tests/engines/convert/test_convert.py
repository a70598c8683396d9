"""`pointsman convert`: its entries serve, and its errors name the cause."""

import json
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from google.protobuf import text_format
from typer.testing import CliRunner

ct = pytest.importorskip("coremltools")
torch = pytest.importorskip("torch")

from engines.backends.coreml import packages  # noqa: E402
from engines.backends.coreml.backend import CoreMLBackend  # noqa: E402
from engines.cli.app import app  # noqa: E402
from engines.convert import sources, verification  # noqa: E402
from engines.convert.package import ConvertedPackage  # noqa: E402
from engines.convert.tensors import (  # noqa: E402
    ConversionError,
    TensorShape,
    parse_shape,
    with_sizes,
)
from gateway.protocol.protobuf import message  # noqa: E402
from tests.engines.backends.coreml.fake import FakeCoreMLTools  # noqa: E402
from tests.engines.backends.support import answers, configuration, spec  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
ON_LINUX = pytest.mark.skipif(sys.platform == "darwin", reason="a Mac compares")


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.linear = torch.nn.Linear(3, 2)

    def forward(self, x):
        return torch.relu(self.linear(x))


EAGER = """
import torch

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.table = torch.nn.Embedding(10, 4)

    def forward(self, ids, scale):
        return self.table(ids).sum(1) * scale, ids + 1
"""


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """A model's file in each form, and an entry of a repository."""
    directory = tmp_path_factory.mktemp("models")
    net = Net().eval()
    torch.jit.trace(net, torch.zeros(1, 3)).save(directory / "net.pt")
    rows = torch.export.Dim("rows", min=1, max=64)
    program = torch.export.export(net, (torch.zeros(2, 3),), dynamic_shapes={"x": {0: rows}})
    torch.export.save(program, directory / "net.pt2")
    version = directory / "entry" / "2"
    version.mkdir(parents=True)
    (version / "model.py").write_text(EAGER)
    (directory / "entry" / "classes.txt").write_text("a\nb\n")
    (directory / "entry" / "config.pbtxt").write_text(
        """
        backend: "pytorch" max_batch_size: 8
        input { name: "ids" data_type: TYPE_INT64 dims: 5 }
        input { name: "scale" data_type: TYPE_FP32 dims: 1 }
        output { name: "sums" data_type: TYPE_FP32 dims: 4 label_filename: "classes.txt" }
        output { name: "next" data_type: TYPE_INT64 dims: 5 }
        """
    )
    return directory


def convert(*arguments):
    return CliRunner().invoke(app, ["convert", *map(str, arguments)])


def entry(path):
    return text_format.Parse((path / "config.pbtxt").read_text(), message("inference.ModelConfig")())


CONFIG = """
name: "net" backend: "coreml" max_batch_size: 4
dynamic_batching { preferred_batch_size: 4 max_queue_delay_microseconds: 1000 }
input { name: "x" data_type: TYPE_FP32 dims: 3 } output { name: "OUTPUT__0" data_type: TYPE_FP32 dims: 2 }
"""


@ON_LINUX
@pytest.mark.parametrize(
    ("file", "options", "files"),
    [
        ("net.pt", ("--shape", "x=3"), {"model-1.mlpackage": [(1, 3)], "model-4.mlpackage": [(4, 3)]}),
        ("net.pt", ("--shape", "x=3", "--enumerated"), {"model.mlpackage": [(1, 3), (4, 3)]}),
        ("net.pt2", ("--precision", "fp32"), {"model-1.mlpackage": [(1, 3)], "model-4.mlpackage": [(4, 3)]}),
    ],
)
def test_a_torch_model_becomes_an_entry_with_a_package_for_each_batch(models, tmp_path, file, options, files):
    """The packages take these shapes, config.pbtxt is complete, and a missing comparison is reported."""
    result = convert(models / file, "-o", tmp_path, "--batch", "1,4", "--json", *options)
    assert result.exit_code == 0, result.output
    report = json.loads(result.stdout)
    assert (report["was_compared"], report["largest_error"]) == (False, None)
    assert {Path(path).name for path in report["files"]} == set(files)
    for name, shapes in files.items():
        (x,) = packages.read_package(ct, tmp_path / "net" / "1" / name).inputs
        assert (x.name, x.datatype, sorted(x.shapes)) == ("x", "FP32", shapes)
    assert entry(tmp_path / "net") == configuration(CONFIG)


def test_what_was_converted_is_served(models, tmp_path):
    """The entry as written loads in the coreml backend; the predictions are a stand-in's."""
    result = convert(models / "net.pt", "-o", tmp_path, "--batch", "4", "--shape", "x=3")
    if sys.platform != "darwin":
        assert "not compared: CoreML runs on macOS alone" in result.stdout
    net = Net().eval()

    def expected(x):
        with torch.no_grad():
            return net(torch.from_numpy(x)).numpy()

    backend = CoreMLBackend(
        FakeCoreMLTools(ct, lambda inputs: {"OUTPUT__0": expected(inputs["x"])}), tmp_path / "cache"
    )
    backend.initialize(spec(tmp_path / "net", entry(tmp_path / "net")))
    x = np.ones((3, 3), np.float32)
    np.testing.assert_allclose(answers(backend, {"x": x})[0].answer["OUTPUT__0"], expected(x), rtol=1e-5)


def test_an_entry_of_a_repository_keeps_its_tensors_and_labels(models, tmp_path):
    """INT64 is INT32 in CoreML; the client's datatype stays."""
    result = convert(models / "entry", "-o", tmp_path, "--name", "fast", "--version", "7", "--batch", "2")
    assert result.exit_code == 0, result.output
    package = packages.read_package(ct, tmp_path / "fast" / "7" / "model.mlpackage")
    assert [(each.name, each.datatype, each.shapes) for each in package.inputs] == [
        ("ids", "INT32", ((2, 5),)),
        ("scale", "FP32", ((2, 1),)),
    ]
    assert {each.name: each.datatype for each in package.outputs} == {"sums": "FP32", "next": "INT32"}
    assert (tmp_path / "fast" / "classes.txt").read_text() == "a\nb\n"
    assert entry(tmp_path / "fast") == configuration(
        """
        name: "fast" backend: "coreml" max_batch_size: 2
        dynamic_batching { preferred_batch_size: 2 max_queue_delay_microseconds: 1000 }
        input { name: "ids" data_type: TYPE_INT64 dims: 5 }
        input { name: "scale" data_type: TYPE_FP32 dims: 1 }
        output { name: "sums" data_type: TYPE_FP32 dims: 4 label_filename: "classes.txt" }
        output { name: "next" data_type: TYPE_INT64 dims: 5 }
        """
    )


@pytest.mark.metal
@pytest.mark.skipif(sys.platform != "darwin", reason="needs macOS")
def test_on_a_mac_the_result_is_compared_with_its_source(models, tmp_path):
    result = convert(models / "net.pt", "-o", tmp_path, "--batch", "1,4", "--shape", "x=3", "--json")
    assert result.exit_code == 0, result.output
    report = json.loads(result.stdout)
    assert report["was_compared"] and report["largest_error"] <= report["tolerance"]


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (
            ("net.pt",),
            "'net.pt' does not tell the sizes of its inputs\n  say them, without the batch: --shape x=3,224,224",
        ),
        (("net.pt", "--shape", "x=3;4"), "--shape x=3;4: has to be NAME=SIZE,SIZE,..."),
        (("net.pt", "--shape", "x=3:STRING"), "'x' is STRING, which CoreML does not have"),
        (("net.pt", "--shape", "x=5"), "the source does not run on x [1, 5]"),
        (("net.pt2", "--shape", "z=5"), "--shape z: the model has no such input, it has x"),
        (("net.pt", "--batch", "0"), "--batch 0: has to be batch sizes, as 1,4,16"),
        (("net.pt", "--precision", "fp8"), "--precision fp8: has to be fp16 or fp32"),
        (("nothing.pt",), "is neither a model's file nor an entry of a model repository"),
        (("net.pt", "--fallback"), "--fallback is for ONNX models, and 'net.pt' is none"),
    ],
)
def test_what_cannot_be_done_is_reported_and_leaves_nothing_behind(models, tmp_path, arguments, error):
    name, *options = arguments
    result = convert(models / name, "-o", tmp_path / "out", *options)
    assert result.exit_code == 2
    assert error in result.output
    assert list((tmp_path / "out").glob("**/*")) == []


@pytest.fixture
def onnx_file(tmp_path):
    onnx = pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    tensor = (onnx.TensorProto.FLOAT, ["n", 3])
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node("Neg", ["x"], ["y"])],
        "negative",
        [onnx.helper.make_tensor_value_info("x", *tensor)],
        [onnx.helper.make_tensor_value_info("y", *tensor)],
    )
    opset = onnx.helper.make_opsetid("", 17)
    onnx.save(onnx.helper.make_model(graph, opset_imports=[opset], ir_version=9), tmp_path / "negative.onnx")
    return tmp_path / "negative.onnx"


def test_onnx_without_onnx2torch_gets_advice(onnx_file, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnx2torch", None)
    result = convert(onnx_file, "-o", tmp_path / "out")
    assert result.exit_code == 2
    assert "coremltools reads no ONNX (since 6.0), and onnx2torch is not installed" in result.output
    assert "--fallback writes that entry" in result.output


def test_onnx_goes_by_onnx2torch_where_that_is_installed(onnx_file, tmp_path, monkeypatch):
    """ONNX models are converted with onnx2torch if it is installed: here a stand-in that knows this model's
    operator."""

    class Negative(torch.nn.Module):
        def forward(self, x):
            return -x

    monkeypatch.setitem(sys.modules, "onnx2torch", SimpleNamespace(convert=lambda model: Negative()))
    result = convert(onnx_file, "-o", tmp_path / "out", "--batch", "1")
    assert result.exit_code == 0, result.output
    assert [tensor.name for tensor in entry(tmp_path / "out" / "negative").output] == ["y"]


def test_the_fallback_is_an_entry_for_onnxruntime_that_serves_anywhere(onnx_file, tmp_path):
    """The entry runs on CoreML where it is available, and on the CPU here."""
    from engines.backends import onnxruntime

    result = convert(onnx_file, "-o", tmp_path / "out", "--fallback")
    assert result.exit_code == 0, result.output
    config = entry(tmp_path / "out" / "negative")
    assert config.backend == "onnxruntime" and config.max_batch_size == 4
    assert [each.name for each in config.optimization.execution_accelerators.cpu_execution_accelerator] == ["coreml"]
    backend = onnxruntime.create()
    backend.initialize(spec(tmp_path / "out" / "negative", config))
    (request,) = answers(backend, {"x": np.ones((1, 3), np.float32)})
    np.testing.assert_allclose(request.answer["y"], [[-1, -1, -1]])


def test_a_version_that_is_there_is_replaced_only_on_request(onnx_file, tmp_path):
    arguments = (onnx_file, "-o", tmp_path / "out", "--fallback")
    assert convert(*arguments).exit_code == 0
    (tmp_path / "out" / "negative" / "1" / "old").touch()
    result = convert(*arguments)
    assert result.exit_code == 2
    assert "is there already\n  --overwrite replaces it" in result.output
    assert convert(*arguments, "--overwrite").exit_code == 0
    assert not (tmp_path / "out" / "negative" / "1" / "old").exists()


@pytest.fixture
def source(models):
    path, config = sources.find(models / "net.pt")
    return sources.load(path, config, [TensorShape("x", "FP32", (3,))])


@pytest.mark.parametrize(
    ("error", "precision", "passed"),
    [(0.0, "fp32", True), (1e-3, "fp32", False), (1e-3, "fp16", True), (0.1, "fp16", False)],
)
def test_the_comparison_allows_what_the_precision_explains(source, error, precision, passed):
    """The stand-in for CoreML returns the source's results with an error relative to the largest element."""

    class Model:
        def __init__(self, path):
            pass

        def predict(self, inputs):
            (y,) = source.reference(inputs).values()
            return {"OUTPUT__0": y + error * np.abs(y).max()}

    built = [ConvertedPackage(Path("p"), (1, 4), ("OUTPUT__0",))]
    checked = verification.check(
        SimpleNamespace(models=SimpleNamespace(MLModel=Model)), source, built, precision, platform="darwin"
    )
    assert checked.worst == pytest.approx(error, abs=1e-6)
    assert checked.passed is passed


@pytest.mark.parametrize(
    ("answer", "expected", "error"),
    [
        ([1.0, 2.0], [1.0, 2.0], 0.0),
        ([1.0, 2.5], [1.0, 2.0], 0.25),
        ([1.0, float("nan")], [1.0, 2.0], float("inf")),
        ([1.0], [1.0, 2.0], float("inf")),
    ],
)
def test_the_error_is_a_share_of_the_largest_element(answer, expected, error):
    assert verification.error_of({"y": np.array(answer)}, {"y": np.array(expected)}) == error


@pytest.mark.parametrize(
    ("text", "tensor"),
    [
        ("image=3,224,224", TensorShape("image", "FP32", (3, 224, 224))),
        ("image=3x8x8", TensorShape("image", "FP32", (3, 8, 8))),
        ("ids=128:INT64", TensorShape("ids", "INT64", (128,))),
    ],
)
def test_shapes_are_written_so(text, tensor):
    assert parse_shape(text) == tensor


def test_open_sizes_have_to_be_reported():
    ids = TensorShape("ids", "INT64", (-1,))
    assert with_sizes([ids], [replace(ids, dims=(128,))]) == [TensorShape("ids", "INT64", (128,))]
    with pytest.raises(ConversionError) as error:
        with_sizes([ids], [])
    assert error.value.advice == "say it: --shape ids=128"
