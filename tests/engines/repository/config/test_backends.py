"""The backend of a model, from its configuration and its files."""

from pathlib import Path

import pytest

from engines.repository.config import ConfigError, complete_backend, read

# The configuration, the entries of the first version directory, and what Triton makes of them:
# backend, platform, default_model_filename.
CASES = [
    ('platform: "pytorch_libtorch"', [], ("pytorch", "pytorch_libtorch", "model.pt")),
    ('platform: "onnxruntime_onnx"', [], ("onnxruntime", "onnxruntime_onnx", "model.onnx")),
    ('platform: "tensorflow_savedmodel"', [], ("tensorflow", "tensorflow_savedmodel", "model.savedmodel")),
    ('platform: "tensorflow_graphdef"', [], ("tensorflow", "tensorflow_graphdef", "model.graphdef")),
    ('platform: "tensorrt_plan"', [], ("tensorrt", "tensorrt_plan", "model.plan")),
    ('platform: "ensemble"', [], ("", "ensemble", "")),
    ('platform: "nothing_known"', [], ("", "nothing_known", "")),
    ('backend: "python"', [], ("python", "", "model.py")),
    ('backend: "pytorch"', [], ("pytorch", "pytorch_libtorch", "model.pt")),
    ('backend: "pytorch", runtime: "model.py"', [], ("pytorch", "pytorch_libtorch", "")),
    ('backend: "onnxruntime"', ["model.onnx"], ("onnxruntime", "onnxruntime_onnx", "model.onnx")),
    ('backend: "onnxruntime", default_model_filename: "m.onnx"', [], ("onnxruntime", "onnxruntime_onnx", "m.onnx")),
    ('backend: "tensorflow"', ["model.graphdef"], ("tensorflow", "tensorflow_graphdef", "model.graphdef")),
    ('backend: "tensorflow"', [], ("tensorflow", "", "")),
    ('backend: "openvino"', [], ("openvino", "", "model.xml")),
    ('backend: "jax"', ["model.py"], ("jax", "", "")),
    ('default_model_filename: "model.pt"', [], ("pytorch", "pytorch_libtorch", "model.pt")),
    ('default_model_filename: "model.py"', [], ("python", "", "model.py")),
    ("", ["model.py"], ("python", "", "model.py")),
    ("", ["model.pt"], ("pytorch", "pytorch_libtorch", "model.pt")),
    ("", ["model.onnx", "model.py"], ("onnxruntime", "onnxruntime_onnx", "model.onnx")),
    ("", ["model.savedmodel"], ("tensorflow", "tensorflow_savedmodel", "model.savedmodel")),
    # This host's own.
    ('backend: "pytorch"', ["model.pt2"], ("pytorch", "pytorch_libtorch", "model.pt2")),
    ('backend: "pytorch"', ["model.py", "model.safetensors"], ("pytorch", "pytorch_libtorch", "model.py")),
    ('backend: "pytorch"', ["model.py", "model.pt"], ("pytorch", "pytorch_libtorch", "model.pt")),
    ("", ["model.mlpackage"], ("coreml", "", "model.mlpackage")),
    ('backend: "coreml"', ["model.mlmodelc"], ("coreml", "", "model.mlmodelc")),
]


@pytest.mark.parametrize("text, files, expected", CASES)
def test_a_backend_is_completed(text: str, files: list[str], expected: tuple[str, ...], tmp_path: Path) -> None:
    """Backend, platform and file name complete each other; where the configuration is silent, the files tell."""
    version = tmp_path / "1"
    version.mkdir()
    for name in files:
        (version / name).touch()
    config = read(text)
    complete_backend(config, "m", tmp_path)
    assert (config.backend, config.platform, config.default_model_filename) == expected
    assert config.name == "m"


def test_a_name_may_tell_the_backend(tmp_path: Path) -> None:
    """A model called `model.identity` asks for the backend `identity`, as in Triton."""
    config = read("")
    complete_backend(config, "model.identity", tmp_path)
    assert (config.backend, config.default_model_filename) == ("identity", "model.identity")


def test_a_model_that_nothing_tells_of(tmp_path: Path) -> None:
    """It is refused in Triton's words."""
    said = "Could not determine backend for model 'm' with no backend in model configuration"
    with pytest.raises(ConfigError, match=said):
        complete_backend(read(""), "m", tmp_path)


def test_a_name_that_is_given_stays(tmp_path: Path) -> None:
    """Whether it fits the directory is checked later."""
    config = read('name: "other", backend: "python"')
    complete_backend(config, "m", tmp_path)
    assert config.name == "other"
