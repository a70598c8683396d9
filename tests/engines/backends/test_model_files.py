"""A missing library is a load error with the package to install."""

import importlib
import subprocess
import sys

import pytest

from engines.backends.model_files import last_version, library, model_file
from engines.core.errors import EngineError, ErrorCode
from tests.engines.backends.support import configuration, spec

BACKENDS = ("pytorch", "onnxruntime", "coreml", "jax", "tensorflow")


def test_a_missing_library_names_its_extra():
    with pytest.raises(EngineError) as error:
        library("no_such_framework.part", "torch")
    assert error.value.code is ErrorCode.UNSUPPORTED
    assert error.value.message == "'no_such_framework' is not installed here: pip install \"pointsman[torch]\""


@pytest.mark.parametrize(
    ("backend", "module", "file"),
    [
        ("pytorch", "torch", "model.pt"),
        ("onnxruntime", "onnxruntime", "model.onnx"),
        ("jax", "jax", "model.py"),
        ("tensorflow", "tensorflow", "model.savedmodel"),
    ],
)
def test_a_missing_framework_is_a_load_error_with_the_package_to_install(tmp_path, monkeypatch, backend, module, file):
    (tmp_path / "1").mkdir()
    (tmp_path / "1" / file).touch()
    monkeypatch.setitem(sys.modules, module, None)
    made = importlib.import_module(f"engines.backends.{backend}")
    with pytest.raises(EngineError) as error:
        made.create().initialize(spec(tmp_path, configuration("")))
    assert f'pip install "pointsman[{made.EXTRA}]"' in error.value.message


def test_backends_are_imported_without_their_frameworks():
    """Importing all of them, and reading their conventions, loads no framework."""
    names = ", ".join(BACKENDS)
    code = f"""
import importlib, sys
for name in "{names}".split(", "):
    module = importlib.import_module("engines.backends." + name)
    assert isinstance(module.INSTANCES_SHARE_A_PROCESS, bool) and callable(module.complete)
    module.create()
heavy = {{"torch", "onnxruntime", "jax", "tensorflow", "coremltools"}} & sys.modules.keys()
assert not heavy, heavy
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_models_file_is_the_configured_one_or_the_first_that_is_there(tmp_path):
    (tmp_path / "b").touch()
    (tmp_path / "c").touch()
    config = configuration('name: "net"')
    assert model_file(config, tmp_path, "a", "b", "c") == tmp_path / "b"
    config.default_model_filename = "c"
    assert model_file(config, tmp_path, "a", "b") == tmp_path / "c"
    config.default_model_filename = "d"
    with pytest.raises(EngineError) as error:
        model_file(config, tmp_path, "a")
    assert error.value.message == f"unable to find '{tmp_path}/d' for model 'net'"


def test_a_configuration_is_completed_from_the_highest_version(tmp_path):
    for version in ("2", "10", "old"):
        (tmp_path / version).mkdir()
    assert last_version(tmp_path) == tmp_path / "10"
    assert last_version(tmp_path / "10") == tmp_path / "10"
    with pytest.raises(EngineError, match="no version of model 'old'"):
        last_version(tmp_path / "old")
