"""CoreML models of fixed shapes serve batches of any size; on a Mac the same tests run on CoreML itself."""

import json
import sys
from types import SimpleNamespace

import numpy as np
import pytest

ct = pytest.importorskip("coremltools")
torch = pytest.importorskip("torch")

from engines.backends import coreml as backend_of_coreml  # noqa: E402
from engines.backends.coreml import disk_cache, packages  # noqa: E402
from engines.backends.coreml.backend import CoreMLBackend  # noqa: E402
from engines.core.errors import EngineError  # noqa: E402
from tests.engines.backends.coreml.fake import FakeCoreMLTools  # noqa: E402
from tests.engines.backends.support import answers, configuration, spec  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")

CONFIG = """
name: "net" backend: "coreml" max_batch_size: 16
input { name: "x" data_type: TYPE_FP32 dims: 3 } output { name: "y" data_type: TYPE_FP32 dims: 2 }
"""
WEIGHT = np.array([[1, 2, 3], [4, 5, 6]], np.float32)


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(3, 2, bias=False)
        self.linear.weight.data = torch.from_numpy(WEIGHT)

    def forward(self, x):
        return torch.relu(self.linear(x))


def expected(x):
    return np.maximum(x @ WEIGHT.T, 0)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Packages by name: for 1 row, for 4 rows, and one for either."""
    directory = tmp_path_factory.mktemp("packages")
    traced = torch.jit.trace(Net().eval(), torch.zeros(1, 3))
    for name, shape in (
        ("one", (1, 3)),
        ("four", (4, 3)),
        ("either", ct.EnumeratedShapes(shapes=[(1, 3), (4, 3)], default=(1, 3))),
    ):
        ct.convert(
            traced,
            inputs=[ct.TensorType(name="x", shape=shape)],
            outputs=[ct.TensorType(name="y", dtype=np.float32)],
            minimum_deployment_target=ct.target.macOS14,
            compute_precision=ct.precision.FLOAT32,
        ).save(str(directory / f"{name}.mlpackage"))
    return directory


@pytest.fixture(
    params=[
        "stand-in",
        pytest.param(
            "CoreML",
            marks=[pytest.mark.metal, pytest.mark.skipif(sys.platform != "darwin", reason="needs macOS")],
        ),
    ]
)
def tools(request):
    """coremltools, or its replacement."""
    return ct if request.param == "CoreML" else FakeCoreMLTools(ct, lambda inputs: {"y": expected(inputs["x"])})


@pytest.fixture
def start(made, tmp_path):
    """`start(tools, files, config)`: a backend on packages; `files` gives each a name in the version's directory."""

    def start(tools, files, text=CONFIG):
        version = tmp_path / "net" / "1"
        version.mkdir(parents=True, exist_ok=True)
        for name, package in files.items():
            if not (version / name).exists():
                (version / name).symlink_to(made / f"{package}.mlpackage")
        backend = CoreMLBackend(tools, cache=tmp_path / "cache")
        backend.initialize(spec(tmp_path / "net", configuration(text)))
        return backend

    return start


BOTH = {"model-1.mlpackage": "one", "model-4.mlpackage": "four"}


@pytest.mark.parametrize("files", [{"model.mlpackage": "either"}, BOTH, {"model.mlpackage": "one"}])
@pytest.mark.parametrize("rows", [1, 2, 4, 7, 9])
def test_a_batch_of_any_size_runs_on_fixed_shapes(tools, start, files, rows):
    """One package with two shapes, a package for each, or one shape many times: the answers are the same."""
    x = np.random.default_rng(rows).standard_normal((rows, 3)).astype(np.float32)
    backend = start(tools, files)
    (request,) = answers(backend, {"x": x})
    np.testing.assert_allclose(request.answer["y"], expected(x), rtol=1e-2, atol=1e-2)
    backend.finalize()


def test_requests_of_a_batch_share_a_bucket(start):
    """Three requests of 1, 1 and 2 rows are one prediction of four rows."""
    tools = FakeCoreMLTools(ct, lambda inputs: {"y": expected(inputs["x"])})
    backend = start(tools, BOTH, CONFIG + 'parameters { key: "COMPUTE_UNITS" value { string_value: "CPU_ONLY" } }')
    requests = answers(backend, *({"x": np.full((rows, 3), rows, np.float32)} for rows in (1, 1, 2)))
    assert tools.calls == [[{"x": (4, 3)}]]
    assert [len(request.answer["y"]) for request in requests] == [1, 1, 2]


def test_a_batch_beyond_the_largest_bucket_is_predicted_as_a_list(start):
    """A batch of nine rows is one prediction of two inputs of four rows, and one prediction of one row."""
    tools = FakeCoreMLTools(ct, lambda inputs: {"y": expected(inputs["x"])})
    backend = start(tools, BOTH, CONFIG + 'parameters { key: "COMPUTE_UNITS" value { string_value: "ALL" } }')
    answers(backend, {"x": np.ones((9, 3), np.float32)})
    assert tools.calls == [[{"x": (4, 3)}, {"x": (4, 3)}], [{"x": (1, 3)}]]


def test_the_error_of_a_wrong_shape_lists_the_right_ones(tools, start):
    backend = start(tools, {"model.mlpackage": "either"}, CONFIG.replace("dims: 3", "dims: -1"))
    (request,) = answers(backend, {"x": np.ones((1, 5), np.float32)})
    assert request.error is not None
    assert request.error.message == (
        "the model was not converted for inputs 'x' [1, 5]: it takes 'x' [1, 3]; 'x' [4, 3]"
    )


def test_the_fastest_usable_units_are_found_once_and_remembered(start, tmp_path):
    """A model is measured on its first load; the next one of the same content is neither measured nor compiled."""
    work = {"CPU_ONLY": {"CPU": 1.0}}
    tools = FakeCoreMLTools(ct, lambda inputs: {"y": expected(inputs["x"])}, ("CPU_AND_NE", "ALL", "CPU_AND_GPU"), work)
    (report,) = start(tools, {"model.mlpackage": "one"}).placement.values()
    assert (report["units"], report["is_remembered"]) == ("CPU_ONLY", False)
    assert [(trial["units"], trial["error"], trial["devices"]) for trial in report["trials"]] == [
        *((units, f"CoreML cannot load '{compiled(tmp_path)}' for {units}: Error compiling for {units}", {})
          for units in ("CPU_AND_NE", "ALL", "CPU_AND_GPU")),
        ("CPU_ONLY", "", {"CPU": 1.0}),
    ]  # fmt: skip
    json.dumps(report)
    again = FakeCoreMLTools(ct, lambda inputs: {"y": expected(inputs["x"])})
    (report,) = start(again, {"model.mlpackage": "one"}).placement.values()
    assert (report["units"], report["is_remembered"]) == ("CPU_ONLY", True)
    assert (again.compiled, again.loaded) == ([], ["CPU_ONLY"])


def compiled(tmp_path):
    (path,) = (tmp_path / "cache").glob("*.mlmodelc")
    return path


@pytest.mark.parametrize(
    ("parameter", "units"),
    [
        (("COMPUTE_UNITS", "cpu_only"), "CPU_ONLY"),
        (("metal", "true"), "CPU_AND_GPU"),
        (("neural_engine", "1"), "CPU_AND_NE"),
    ],
)
def test_the_configuration_may_name_the_units(start, parameter, units):
    """Compute units that the configuration names are used without trials."""
    tools = FakeCoreMLTools(ct, lambda inputs: {"y": expected(inputs["x"])})
    key, value = parameter
    backend = start(
        tools, {"model.mlpackage": "one"}, CONFIG + f'parameters {{ key: "{key}" value {{ string_value: "{value}" }} }}'
    )
    assert backend.placement == {"model.mlpackage": {"units": units, "trials": (), "is_remembered": False}}
    assert tools.loaded == [units]


def test_a_model_that_no_unit_can_run_is_a_load_error(start):
    tools = FakeCoreMLTools(ct, dict, ("CPU_AND_NE", "ALL", "CPU_AND_GPU", "CPU_ONLY"))
    with pytest.raises(EngineError, match="the model runs on none of the compute units: CPU_AND_NE: "):
        start(tools, {"model.mlpackage": "one"})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (CONFIG.replace('"x"', '"z"'), "configuration has inputs z, 'model.mlpackage' has x"),
        (CONFIG.replace('"y"', '"z"'), "configuration has outputs z, 'model.mlpackage' has y"),
        (
            CONFIG + 'parameters { key: "COMPUTE_UNITS" value { string_value: "TPU" } }',
            "'COMPUTE_UNITS' is 'TPU', and has to be one of auto, CPU_AND_NE, ALL, CPU_AND_GPU, CPU_ONLY",
        ),
        (CONFIG + ' default_model_filename: "no.mlpackage"', "unable to find 'no.mlpackage'"),
    ],
)
def test_a_failed_load_has_a_reason(start, text, message):
    with pytest.raises(EngineError) as error:
        start(FakeCoreMLTools(ct, dict), {"model.mlpackage": "one"}, text)
    assert message in error.value.message


@pytest.mark.skipif(sys.platform == "darwin", reason="a Mac can")
def test_elsewhere_the_load_error_names_macos(tmp_path):
    with pytest.raises(EngineError, match="CoreML models run on macOS alone"):
        backend_of_coreml.create().initialize(spec(tmp_path, configuration(CONFIG)))


def test_a_configuration_is_completed_from_packages_of_several_batches(made, tmp_path):
    (tmp_path / "1").mkdir()
    for name, package in BOTH.items():
        (tmp_path / "1" / name).symlink_to(made / f"{package}.mlpackage")
    config = configuration('name: "net" backend: "coreml"')
    backend_of_coreml.complete(config, tmp_path)
    assert config == configuration(CONFIG.replace("16", "4") + "dynamic_batching {}")


def test_a_configuration_is_completed_from_one_fixed_shape(made, tmp_path):
    (tmp_path / "1").mkdir()
    (tmp_path / "1" / "model.mlpackage").symlink_to(made / "one.mlpackage")
    config = configuration('name: "net"')
    backend_of_coreml.complete(config, tmp_path)
    assert (config.max_batch_size, list(config.input[0].dims), list(config.output[0].dims)) == (0, [1, 3], [1, 2])


def test_whole_numbers_are_32_bits_wide(made):
    """An INT64 input of the configuration goes in as int32, if it fits."""
    backend = CoreMLBackend()
    backend._features = {"ids": packages.Feature("ids", "INT32", ((1, 2),))}
    assert backend._value("ids", np.array([[1, -2]])).dtype == np.int32
    with pytest.raises(EngineError, match="input 'ids' does not fit the 32 bits"):
        backend._value("ids", np.array([[1 << 40, 0]]))


def bucket(rows, path="p"):
    return packages.Bucket(path, {"x": (rows, 3)}, rows)


@pytest.mark.parametrize(
    ("rows", "sizes", "cut"),
    [(1, (1, 4), [1]), (2, (1, 4), [4]), (5, (1, 4), [4, 1]), (9, (4,), [4, 4, 4]), (16, (1, 4, 16), [16])],
)
def test_batches_are_cut_into_the_largest_buckets_they_fill(rows, sizes, cut):
    assert [each.rows for each in packages.split_rows(rows, [bucket(size) for size in sizes])] == cut


def test_shapes_of_several_inputs_change_together():
    """The i-th shapes of all variable inputs form one call; an input of fixed shape is in every call."""
    package = packages.Package(
        "p",
        (
            packages.Feature("ids", "INT32", ((1, 8), (4, 8))),
            packages.Feature("mask", "INT32", ((1, 8), (4, 8))),
            packages.Feature("scale", "FP32", ((1,),)),
        ),
        (),
    )
    assert list(package.calls()) == [
        {"ids": (1, 8), "mask": (1, 8), "scale": (1,)},
        {"ids": (4, 8), "mask": (4, 8), "scale": (1,)},
    ]


@pytest.mark.parametrize(
    ("ranges", "shapes"),
    [
        ([(1, 8), (3, 3)], [(1, 3), (2, 3), (4, 3), (8, 3)]),
        ([(2, 5), (3, 3)], [(2, 3), (4, 3), (5, 3)]),
        ([(1, 4), (1, 9)], []),
    ],
)
def test_an_open_batch_gets_buckets_of_powers_of_two(ranges, shapes):
    assert list(packages.in_ranges(ranges)) == shapes


def test_a_compiled_model_has_its_shapes_in_its_metadata(tmp_path):
    path = tmp_path / "model.mlmodelc"
    path.mkdir()
    schema = {"name": "x", "dataType": "Float16", "shape": "[1, 3]"}
    many = schema | {"name": "m", "dataType": "Int32", "enumeratedShapes": "[[1, 3], [4, 3]]"}
    reply = [{"inputSchema": [schema, many], "outputSchema": [schema | {"name": "y", "shape": "[]"}]}]
    (path / "metadata.json").write_text(json.dumps(reply))
    assert packages.read_package(ct, path) == packages.Package(
        path,
        (packages.Feature("x", "FP16", ((1, 3),)), packages.Feature("m", "INT32", ((1, 3), (4, 3)))),
        (packages.Feature("y", "FP16", ()),),
    )


def test_packages_with_the_same_content_have_the_same_digest(made, tmp_path):
    """The digest does not depend on the package's name, and differs when a file in it differs."""
    import shutil

    copy = tmp_path / "copy.mlpackage"
    shutil.copytree(made / "one.mlpackage", copy)
    assert (
        disk_cache.digest(copy)
        == disk_cache.digest(made / "one.mlpackage")
        != disk_cache.digest(made / "four.mlpackage")
    )
    (copy / "more").write_text("x")
    assert disk_cache.digest(copy) != disk_cache.digest(made / "one.mlpackage")


@pytest.mark.parametrize("broken", ["", "nonsense", "{}", '{"machine": "m", "units": "TPU", "trials": []}'])
def test_an_unreadable_cache_file_is_ignored(tmp_path, broken):
    cache = disk_cache.DiskCache(tmp_path, "m")
    cache.store("d", SimpleNamespace(units="ALL", trials=()))
    assert cache.load("d").units == "ALL"
    assert disk_cache.DiskCache(tmp_path, "other machine").load("d") is None
    (file,) = tmp_path.glob("d-*.json")
    file.write_text(broken)
    assert cache.load("d") is None
