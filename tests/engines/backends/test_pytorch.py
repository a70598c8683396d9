"""PyTorch models in each of their forms return the same results as torch."""

import os

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from engines.backends import pytorch  # noqa: E402
from engines.backends.model_files import python_module  # noqa: E402
from engines.backends.pytorch import devices, models  # noqa: E402
from engines.core.errors import EngineError  # noqa: E402
from tests.engines.backends.support import answers, configuration, spec  # noqa: E402

# TorchScript is deprecated, and still the most frequent form in model repositories.
pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")

CONFIG = """
name: "net" max_batch_size: 8
input { name: "image" data_type: TYPE_FP32 dims: [ 3, 8, 8 ] }
output { name: "scores" data_type: TYPE_FP32 dims: 4 }
"""
EAGER = """
import torch

class Part(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = torch.nn.Conv2d(3, 4, 3)

    def forward(self, image):
        return torch.relu(self.conv(image)).mean((2, 3))

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.part = Part()
        self.scale = torch.nn.Parameter(torch.ones(4))

    def forward(self, image):
        return self.part(image) * self.scale
"""


@pytest.fixture(scope="module")
def net(tmp_path_factory):
    path = tmp_path_factory.mktemp("net") / "net.py"
    path.write_text(EAGER)
    torch.manual_seed(1)
    return python_module(path, "net_of_this_test").Net().eval()


@pytest.fixture
def start(tmp_path):
    """`start(save, config, **spec)`: a backend on what `save(version_directory)` has written."""

    def start(save, text=CONFIG, **more):
        (tmp_path / "1").mkdir(exist_ok=True)
        save(tmp_path / "1")
        backend = pytorch.create()
        backend.initialize(spec(tmp_path, configuration(text), **more))
        return backend

    return start


def batch(rows, seed=0):
    return np.random.default_rng(seed).standard_normal((rows, 3, 8, 8), np.float32)


def expected(net, *arrays):
    with torch.inference_mode():
        return net(*(torch.from_numpy(array) for array in arrays)).numpy()


def save_script(net, path):
    torch.jit.script(net).save(path / "model.pt")


def save_trace(net, path):
    torch.jit.trace(net, torch.zeros(1, 3, 8, 8)).save(path / "model.pt")


def save_export(net, path):
    rows = torch.export.Dim("rows", min=1, max=64)
    program = torch.export.export(net, (torch.zeros(2, 3, 8, 8),), dynamic_shapes={"image": {0: rows}})
    torch.export.save(program, path / "model.pt2")


def save_eager(net, path):
    from safetensors.torch import save_file

    (path / "model.py").write_text(EAGER)
    save_file(net.state_dict(), path / "model.safetensors")


def save_eager_with_a_state_dict(net, path):
    (path / "model.py").write_text(EAGER)
    torch.save(net.state_dict(), path / "model.pt")


@pytest.mark.parametrize("save", [save_script, save_trace, save_export, save_eager, save_eager_with_a_state_dict])
def test_each_form_of_a_model_answers_a_batch_as_torch_does(net, start, save):
    """Two requests run as one; outputs are torch's."""
    backend = start(lambda path: save(net, path))
    first, second = answers(backend, {"image": batch(2)}, {"image": batch(1, seed=1)})
    np.testing.assert_allclose(first.answer["scores"], expected(net, batch(2)), rtol=1e-5)
    np.testing.assert_allclose(second.answer["scores"], expected(net, batch(1, seed=1)), rtol=1e-5)
    backend.finalize()


@pytest.mark.parametrize(
    "parameters",
    [
        {"INFERENCE_MODE": "false", "DISABLE_OPTIMIZED_EXECUTION": "true", "DISABLE_CUDNN": "true"},
        {"CHANNELS_LAST": "true", "INTRA_OP_THREAD_COUNT": "1", "ENABLE_CACHE_CLEANING": "true"},
        {"ENABLE_WEIGHT_SHARING": "true", "ENABLE_JIT_PROFILING": "true", "ENABLE_TENSOR_FUSER": "true"},
        {"DEVICE": "cpu", "FORWARD_METHOD_NAME": "forward", "NUM_THREADS": "2"},
    ],
)
def test_parameters_change_how_it_runs_and_not_what_it_answers(net, start, parameters):
    text = CONFIG + "".join(
        f'parameters {{ key: "{k}" value {{ string_value: "{v}" }} }}\n' for k, v in parameters.items()
    )
    backend = start(lambda path: save_script(net, path), text)
    (request,) = answers(backend, {"image": batch(3)})
    np.testing.assert_allclose(request.answer["scores"], expected(net, batch(3)), rtol=1e-5)


def test_autocast_computes_in_its_dtype_and_answers_in_the_configured_one(net, start):
    text = CONFIG + 'parameters { key: "ENABLE_AUTOCAST" value { string_value: "true" } }'
    (request,) = answers(start(lambda path: save_eager(net, path), text), {"image": batch(2)})
    scores = request.answer["scores"]
    assert scores.dtype == np.float32
    np.testing.assert_allclose(scores, expected(net, batch(2)), rtol=0.1, atol=0.02)
    assert not np.array_equal(scores, expected(net, batch(2)))


def test_an_eager_model_is_compiled_on_request(net, start):
    """The compiler here is the one that only checks the graph: it needs no C++."""
    text = (
        CONFIG
        + """
        parameters {
          key: "TORCH_COMPILE_OPTIONAL_PARAMETERS" value { string_value: '{"backend": "eager", "fullgraph": true}' }
        }"""
    )
    (request,) = answers(start(lambda path: save_eager(net, path), text), {"image": batch(2)})
    np.testing.assert_allclose(request.answer["scores"], expected(net, batch(2)), rtol=1e-5)


class Two(torch.nn.Module):
    def forward(self, a: torch.Tensor, b: torch.Tensor):
        return a - b, a + b


class FromDict(torch.nn.Module):
    def forward(self, tensors: dict[str, torch.Tensor]):
        return tensors["a"] - tensors["b"], tensors["a"] + tensors["b"]


def two_inputs(names, outputs):
    tensors = [f'input {{ name: "{name}" data_type: TYPE_INT32 dims: 1 }}' for name in names]
    tensors += [f'output {{ name: "{name}" data_type: TYPE_INT32 dims: 1 }}' for name in outputs]
    return 'name: "two" max_batch_size: 4 ' + " ".join(tensors)


@pytest.mark.parametrize(
    ("module", "names", "outputs", "answer"),
    [
        (Two, ("b", "a"), ("diff", "sum"), [1, 9]),  # names of arguments count, not their order
        (Two, ("x__1", "y__0"), ("o__1", "o__0"), [9, 1]),  # indices
        (Two, ("later", "sooner"), ("diff", "sum"), [-1, 9]),  # the order of the configuration
        (FromDict, ("b", "a"), ("OUTPUT__0", "OUTPUT__1"), [1, 9]),  # a dictionary of all
    ],
)
def test_tensors_find_their_arguments_by_name_by_index_or_by_order(start, module, names, outputs, answer):
    """The first input is 4 and the second 5, matched by name, index or order; outputs follow the configured order."""
    backend = start(lambda path: torch.jit.script(module()).save(path / "model.pt"), two_inputs(names, outputs))
    (request,) = answers(backend, {names[0]: np.array([[4]], "i4"), names[1]: np.array([[5]], "i4")})
    assert [request.answer[name].item() for name in outputs] == answer


class Structured(torch.nn.Module):
    def forward(self, a, options, *, extra):
        return {"sum": a + options["b"], "pair": (extra, a)}


@pytest.mark.parametrize(
    ("names", "outputs"),
    [
        (("ARGS[0]", "ARGS[1][b]", "KWARGS[extra]"), ("RESULT[sum]", "RESULT[pair][0]", "RESULT[pair][1]")),
        (("INPUT__0", "INPUT__1", "INPUT__2"), ("OUTPUT__0", "OUTPUT__1", "OUTPUT__2")),
    ],
)
def test_an_archive_takes_structures_by_their_paths(start, names, outputs):
    def save(path):
        one = torch.zeros(2, 1, dtype=torch.int32)
        rows = torch.export.Dim("rows")
        shapes = {"a": {0: rows}, "options": {"b": {0: rows}}, "extra": {0: rows}}
        program = torch.export.export(
            Structured(), (one, {"b": one.clone()}), {"extra": one.clone()}, dynamic_shapes=shapes
        )
        torch.export.save(program, path / "model.pt2")

    backend = start(save, two_inputs(names, outputs))
    inputs = {name: np.array([[value], [10 * value]], "i4") for name, value in zip(names, (1, 2, 3), strict=True)}
    (request,) = answers(backend, inputs)
    assert [request.answer[name].reshape(-1).tolist() for name in outputs] == [[3, 30], [3, 30], [1, 10]]


class Shout(torch.nn.Module):
    def forward(self, texts: list[str]) -> list[str]:
        return [text + "!" for text in texts]


def test_strings_are_lists_in_torchscript(start):
    text = """
        name: "shout" max_batch_size: 4
        input { name: "texts" data_type: TYPE_STRING dims: 1 reshape { shape: [] } }
        output { name: "loud" data_type: TYPE_STRING dims: 1 reshape { shape: [] } }
        """
    backend = start(lambda path: torch.jit.script(Shout()).save(path / "model.pt"), text)
    first, second = answers(
        backend, {"texts": np.array([b"ab", "\u00e9".encode()], object)}, {"texts": np.array([b"\xff"], object)}
    )
    assert first.answer["loud"].tolist() == [b"ab!", "\u00e9!".encode()]
    assert second.error is not None and "not UTF-8" in second.error.message


@pytest.mark.parametrize(
    ("datatype", "dtype", "values"),
    [("BF16", "u2", [0x3F80, 0x4000]), ("FP16", "f2", [1, 2]), ("BOOL", "?", [True, False])],
)
def test_every_datatype_goes_through(start, datatype, dtype, values):
    text = f"""
        name: "same"
        input {{ name: "x" data_type: TYPE_{datatype} dims: -1 }}
        output {{ name: "y" data_type: TYPE_{datatype} dims: -1 }}
        """

    class Same(torch.nn.Module):
        def forward(self, x):
            return x.clone()

    backend = start(lambda path: torch.jit.script(Same()).save(path / "model.pt"), text)
    (request,) = answers(backend, {"x": np.array(values, dtype)})
    assert (request.answer["y"].dtype, request.answer["y"].tolist()) == (np.dtype(dtype), values)


def test_what_a_client_lent_does_not_change_under_a_model_that_works_in_place(start):
    class InPlace(torch.nn.Module):
        def forward(self, x):
            return x.add_(1)

    text = """
        name: "inplace"
        input { name: "x" data_type: TYPE_INT32 dims: -1 } output { name: "y" data_type: TYPE_INT32 dims: -1 }
        """
    backend = start(lambda path: torch.jit.script(InPlace()).save(path / "model.pt"), text)
    lent = np.frombuffer(b"\1\0\0\0", "i4")  # read-only, as a mapped region is
    (request,) = answers(backend, {"x": lent})
    assert (request.answer["y"].tolist(), lent.tolist()) == ([2], [1])


def parameter(key, value):
    return f' parameters {{ key: "{key}" value {{ string_value: "{value}" }} }}'


ONE, BOTH = two_inputs(("a",), ("OUTPUT__0",)), two_inputs(("a", "b"), ("OUTPUT__0",))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (ONE, "configuration expects 1 inputs (a), model provides 2 (a, b)"),
        (BOTH + parameter("INFERENCE_MODE", "maybe"), "'INFERENCE_MODE' is 'maybe', and has to be true or false"),
        (BOTH + parameter("DEVICE", "warp9"), "parameter 'DEVICE' is 'warp9', which cannot be used here"),
        (BOTH + parameter("NUM_THREADS", "many"), "'NUM_THREADS' is 'many', and has to be a whole number"),
        (BOTH + parameter("FORWARD_METHOD_NAME", "backward"), "the model has no method 'backward'"),
        (BOTH + parameter("TORCH_COMPILE", "true"), "TORCH_COMPILE is for eager and exported models"),
        (BOTH + ' default_model_filename: "other.pt"', "unable to find"),
    ],
)
def test_a_failed_load_has_a_reason(start, text, message):
    with pytest.raises(EngineError) as error:
        start(lambda path: torch.jit.script(Two()).save(path / "model.pt"), text)
    assert message in error.value.message


def test_an_output_that_the_model_does_not_have_fails_the_request(start):
    text = two_inputs(("a", "b"), ("OUTPUT__2",))
    backend = start(lambda path: torch.jit.script(Two()).save(path / "model.pt"), text)
    (request,) = answers(backend, {"a": np.array([[4]], "i4"), "b": np.array([[5]], "i4")})
    assert request.error is not None
    assert request.error.message == (
        "The output OUTPUT__2 in the model configuration refers to an output index which doesn't exist. "
        "This model has 2 outputs"
    )


def test_a_broken_file_is_a_load_error(start):
    with pytest.raises(EngineError, match="failed to load model 'net'"):
        start(lambda path: (path / "model.pt").write_bytes(b"PK nonsense"))


def test_an_archive_completes_its_configuration(net, tmp_path):
    """Names, datatypes and shapes come from the graph; an open first axis is the batch."""
    (tmp_path / "1").mkdir()
    save_export(net, tmp_path / "1")
    config = configuration('name: "net" backend: "pytorch"')
    pytorch.complete(config, tmp_path)
    assert config == configuration(
        """
        name: "net" backend: "pytorch" max_batch_size: 4 dynamic_batching {}
        input { name: "image" data_type: TYPE_FP32 dims: [ 3, 8, 8 ] }
        output { name: "OUTPUT__0" data_type: TYPE_FP32 dims: 4 }
        """
    )


def test_torchscript_cannot_complete_a_configuration(net, tmp_path):
    (tmp_path / "1").mkdir()
    save_script(net, tmp_path / "1")
    with pytest.raises(EngineError, match=r"has to say its inputs and outputs in config\.pbtxt"):
        pytorch.complete(configuration('name: "net"'), tmp_path)


def test_all_work_for_metal_is_done_by_one_thread():
    """Two threads that use Metal crash torch: one thread runs all calls, and errors reach the caller."""
    import threading

    seen = set()
    call = devices.caller("mps")

    def caller():
        call(lambda: seen.add(threading.get_ident()))

    threads = [threading.Thread(target=caller) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(seen) == 1
    with pytest.raises(ZeroDivisionError):
        call(lambda: 1 / 0)


def test_a_gpu_instance_runs_on_the_cpu_where_there_is_no_gpu(net, start, monkeypatch, caplog):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    backend = start(lambda path: save_script(net, path), kind="KIND_GPU")
    (request,) = answers(backend, {"image": batch(1)})
    np.testing.assert_allclose(request.answer["scores"], expected(net, batch(1)), rtol=1e-5)
    assert "neither CUDA nor Metal" in caplog.text


@pytest.fixture
def on_meta(monkeypatch):
    """KIND_GPU becomes torch's device `meta`: it computes nothing, and reading a result from it fails."""
    monkeypatch.setattr(devices, "_choose", lambda *_: torch.device("meta"))
    monkeypatch.setattr(devices, "INCOMPLETE", {"meta"})
    monkeypatch.setattr(devices, "_LACKS", {"meta": {"FP64"}})


def test_a_model_that_fails_on_its_gpu_at_first_runs_on_the_cpu(net, start, on_meta, caplog):
    """The first request, even the warm-up's, gets its response; later ones run on the CPU at once, and the log has the
    reason."""
    backend = start(lambda path: save_eager(net, path), kind="KIND_GPU")
    assert backend.placement["device"] == "meta"
    (request,) = answers(backend, {"image": batch(2)})
    np.testing.assert_allclose(request.answer["scores"], expected(net, batch(2)), rtol=1e-5)
    assert backend.placement["device"] == "cpu"
    (line,) = [each for each in caplog.messages if "runs on the CPU" in each]
    assert line.startswith("'net_0_0' runs on the CPU, as it fails on meta: ")


@pytest.fixture
def loads(monkeypatch):
    """The devices on which models were loaded, in order."""
    seen = []
    load = models.load

    def remember(torch, path, device, **more):
        seen.append(device.type)
        return load(torch, path, device, **more)

    monkeypatch.setattr(models, "load", remember)
    return seen


def test_requests_that_fail_on_the_cpu_too_settle_nothing(net, start, on_meta, loads):
    """Requests that fail on the CPU too keep the model on the device, and the CPU copy is loaded once. A later good
    request still detects that the device fails."""
    text = CONFIG.replace("[ 3, 8, 8 ]", "[ -1, 8, 8 ]")
    bad = {"image": np.zeros((1, 2, 8, 8), np.float32)}
    backend = start(lambda path: save_eager(net, path), text, kind="KIND_GPU")
    for _ in range(3):
        assert all(request.error is not None for request in answers(backend, bad, bad))
    assert backend._device.type == "meta" and backend.placement["device"] == "meta"
    assert loads == ["meta", "cpu"]
    *failed, good = answers(backend, bad, bad, {"image": batch(2)})
    assert all(request.error is not None for request in failed)
    np.testing.assert_allclose(good.answer["scores"], expected(net, batch(2)), rtol=1e-5)
    assert backend.placement["device"] == "cpu"
    assert loads == ["meta", "cpu"]


def test_a_device_that_answers_is_kept(net, start, monkeypatch, loads):
    """After one successful request on the device, failures load no copy onto the CPU."""
    monkeypatch.setattr(devices, "INCOMPLETE", {"cpu"})
    text = CONFIG.replace("[ 3, 8, 8 ]", "[ -1, 8, 8 ]")
    backend = start(lambda path: save_eager(net, path), text)
    bad = {"image": np.zeros((1, 2, 8, 8), np.float32)}
    answers(backend, {"image": batch(1)})
    assert all(request.error is not None for request in answers(backend, bad, bad))
    assert loads == ["cpu"]


def test_inputs_that_are_refused_load_nothing(start, on_meta, loads):
    """An input that is not UTF-8 is refused before the model runs, and loads no copy onto the CPU."""
    text = """
    name: "net" max_batch_size: 0
    input { name: "words" data_type: TYPE_STRING dims: -1 } output { name: "scores" data_type: TYPE_FP32 dims: -1 }
    """
    eager = "import torch\nclass Net(torch.nn.Module):\n    def forward(self, words):\n        return torch.ones(1)\n"
    backend = start(lambda path: (path / "model.py").write_text(eager), text, kind="KIND_GPU")
    (request,) = answers(backend, {"words": np.array([b"\xff"], object)})
    assert "not UTF-8" in str(request.error)
    assert loads == ["meta"]


def test_a_copy_that_the_cpu_cannot_hold_is_tried_once(net, start, on_meta, monkeypatch):
    """The request fails with the device's error, and later requests do not load the copy again."""
    backend = start(lambda path: save_eager(net, path), kind="KIND_GPU")
    tried = []

    def load(*_, **__):
        tried.append(1)
        raise MemoryError

    monkeypatch.setattr(models, "load", load)
    for _ in range(3):
        (request,) = answers(backend, {"image": batch(1)})
        assert "meta" in str(request.error)
    assert len(tried) == 1


def test_a_gpu_without_a_datatype_of_the_model_is_not_taken(net, start, on_meta, caplog):
    """Metal has no FP64: the CPU runs such a model, and a device that is configured by name is rejected."""
    text = CONFIG.replace("TYPE_FP32", "TYPE_FP64")
    backend = start(lambda path: save_eager(net, path), text, kind="KIND_GPU")
    assert backend.placement["device"] == "cpu"
    assert "an instance of KIND_GPU runs on the CPU: meta has no FP64" in caplog.messages
    named = text + 'parameters { key: "DEVICE" value { string_value: "meta" } }'
    with pytest.raises(EngineError, match="parameter 'DEVICE' is 'meta', which has no FP64"):
        start(lambda path: save_eager(net, path), named, kind="KIND_GPU")


def test_operations_that_metal_lacks_run_on_the_cpu(monkeypatch):
    """The fallback is enabled on macOS only; a value that the user has set is kept."""
    monkeypatch.delenv("PYTORCH_ENABLE_MPS_FALLBACK", raising=False)
    pytorch.allow_metal_fallback("linux")
    assert "PYTORCH_ENABLE_MPS_FALLBACK" not in os.environ
    pytorch.allow_metal_fallback("darwin")
    assert os.environ["PYTORCH_ENABLE_MPS_FALLBACK"] == "1"
    monkeypatch.setenv("PYTORCH_ENABLE_MPS_FALLBACK", "0")
    pytorch.allow_metal_fallback("darwin")
    assert os.environ["PYTORCH_ENABLE_MPS_FALLBACK"] == "0"


@pytest.mark.metal
@pytest.mark.skipif(not torch.backends.mps.is_available(), reason="needs Metal")
def test_a_gpu_instance_runs_on_metal_on_a_mac(net, start):
    backend = start(lambda path: save_script(net, path), kind="KIND_GPU")
    assert backend._device.type == "mps"
    (request,) = answers(backend, {"image": batch(2)})
    np.testing.assert_allclose(request.answer["scores"], expected(net, batch(2)), rtol=1e-3, atol=1e-4)
