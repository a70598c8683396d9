"""Defaults that Triton fills in."""

from pathlib import Path

import pytest

from engines.repository.config import (
    ConfigError,
    check_instance_groups,
    complete_backend,
    read,
    set_defaults,
    set_instance_groups,
)

# The configuration, the entries of the first version directory, and Triton's result:
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
    # Specific to this host.
    ('backend: "pytorch"', ["model.pt2"], ("pytorch", "pytorch_libtorch", "model.pt2")),
    ('backend: "pytorch"', ["model.py", "model.safetensors"], ("pytorch", "pytorch_libtorch", "model.py")),
    ('backend: "pytorch"', ["model.py", "model.pt"], ("pytorch", "pytorch_libtorch", "model.pt")),
    ("", ["model.mlpackage"], ("coreml", "", "model.mlpackage")),
    ('backend: "coreml"', ["model.mlmodelc"], ("coreml", "", "model.mlmodelc")),
]


@pytest.mark.parametrize("text, files, expected", CASES)
def test_a_backend_is_completed(text: str, files: list[str], expected: tuple[str, ...], tmp_path: Path) -> None:
    """Backend, platform and file name determine each other; without them the files of the version determine all."""
    version = tmp_path / "1"
    version.mkdir()
    for name in files:
        (version / name).touch()
    config = read(text)
    complete_backend(config, "m", tmp_path)
    assert (config.backend, config.platform, config.default_model_filename) == expected
    assert config.name == "m"


def test_a_name_may_select_the_backend(tmp_path: Path) -> None:
    """A model named `model.identity` uses the backend `identity`, as in Triton."""
    config = read("")
    complete_backend(config, "model.identity", tmp_path)
    assert (config.backend, config.default_model_filename) == ("identity", "model.identity")


def test_a_model_without_a_backend(tmp_path: Path) -> None:
    """A model whose backend is unknown is refused with Triton's text."""
    error_text = "Could not determine backend for model 'm' with no backend in model configuration"
    with pytest.raises(ConfigError, match=error_text):
        complete_backend(read(""), "m", tmp_path)


def test_a_name_that_is_given_stays(tmp_path: Path) -> None:
    """A configured name is kept; another check compares it with the directory."""
    config = read('name: "other", backend: "python"')
    complete_backend(config, "m", tmp_path)
    assert config.name == "other"


PINNED = "optimization { input_pinned_memory { enable: true } output_pinned_memory { enable: true } }"
LATEST = "version_policy { latest { num_versions: 1 } }"

DEFAULTS = [
    ("", f"{LATEST} {PINNED}"),
    ("version_policy { all { } }", f"version_policy {{ all {{ }} }} {PINNED}"),
    (
        "max_batch_size: 8 dynamic_batching { }",
        f"max_batch_size: 8 dynamic_batching {{ preferred_batch_size: [ 8 ] }} {LATEST} {PINNED}",
    ),
    ("dynamic_batching { }", f"dynamic_batching {{ }} {LATEST} {PINNED}"),
    (
        "max_batch_size: 8 dynamic_batching { preferred_batch_size: [ 2, 4 ] }",
        f"max_batch_size: 8 dynamic_batching {{ preferred_batch_size: [ 2, 4 ] }} {LATEST} {PINNED}",
    ),
    (
        "sequence_batching { }",
        f"sequence_batching {{ max_sequence_idle_microseconds: 1000000 }} {LATEST} {PINNED}",
    ),
    (
        "max_batch_size: 4 sequence_batching { oldest { } max_sequence_idle_microseconds: 5 }",
        "max_batch_size: 4 sequence_batching { oldest { preferred_batch_size: [ 4 ] } "
        f"max_sequence_idle_microseconds: 5 }} {LATEST} {PINNED}",
    ),
    (
        "optimization { input_pinned_memory { enable: false } }",
        "optimization { input_pinned_memory { enable: false } output_pinned_memory { enable: true } } " + LATEST,
    ),
    ('platform: "ensemble" ensemble_scheduling { }', f'platform: "ensemble" ensemble_scheduling {{ }} {LATEST}'),
]


@pytest.mark.parametrize("text, expected", DEFAULTS)
def test_defaults(text: str, expected: str) -> None:
    """Version policy, preferred batch sizes, idle time and pinned memory have defaults."""
    config = read(text)
    set_defaults(config)
    assert config == read(expected)


# The groups as written, the backend, the GPUs of the machine, and (name, kind, count, gpus) of each.
CPU, GPU, MODEL = "KIND_CPU", "KIND_GPU", "KIND_MODEL"
GROUPS = [
    ("", "python", (), [("m", CPU, 1, [])]),
    ("", "python", (0, 1), [("m", GPU, 1, [0, 1])]),
    ("", "onnxruntime", (), [("m", CPU, 2, [])]),
    ("", "tensorflow", (), [("m", CPU, 2, [])]),
    ("", "pytorch", (), [("m", CPU, 1, [])]),
    ("", "onnxruntime", (0,), [("m", GPU, 1, [0])]),
    ("instance_group [ { } ]", "python", (), [("m_0", CPU, 1, [])]),
    (
        'instance_group [ { count: 2 }, { name: "z", kind: KIND_CPU }, { kind: KIND_MODEL } ]',
        "python",
        (),
        [("m_0", CPU, 2, []), ("z", CPU, 1, []), ("m_2", MODEL, 1, [])],
    ),
    ("instance_group [ { gpus: [ 1 ] } ]", "python", (0, 1), [("m_0", GPU, 1, [1])]),
    ("instance_group [ { kind: KIND_GPU } ]", "python", (0, 1), [("m_0", GPU, 1, [0, 1])]),
]


@pytest.mark.parametrize("text, backend, gpus, expected", GROUPS)
def test_instance_groups(text: str, backend: str, gpus: tuple[int, ...], expected: list[tuple]) -> None:
    """A group gets a name, a kind that this machine has, and a count; KIND_GPU gets all GPUs."""
    config = read(f'name: "m" backend: "{backend}" {text}')
    set_instance_groups(config, gpus, is_metal=False)
    check_instance_groups(config, gpus)
    kinds = config.instance_group[0].Kind
    groups = [(group.name, kinds.Name(group.kind), group.count, list(group.gpus)) for group in config.instance_group]
    assert groups == expected


@pytest.mark.parametrize(
    "group, gpus, error_text",
    [
        ("kind: KIND_GPU", (), "instance group m_0 of model m has kind KIND_GPU but no GPUs are available"),
        ("kind: KIND_GPU, gpus: [ 3 ]", (0, 1), "m_0 of model m specifies invalid or unsupported gpu id 3"),
        ("kind: KIND_CPU, gpus: [ 0 ]", (0,), "m_0 of model m has kind KIND_CPU but specifies one or more GPUs"),
        ("kind: KIND_MODEL, gpus: [ 0 ]", (0,), "has kind KIND_MODEL but specifies one or more GPUs"),
        ('profile: [ "0" ]', (), "specifies profile field which is only supported for TensorRT models"),
    ],
)
def test_instance_groups_that_are_refused(group: str, gpus: tuple[int, ...], error_text: str) -> None:
    """A wrong group is refused with Triton's text."""
    config = read(f'name: "m" backend: "python" instance_group [ {{ {group} }} ]')
    set_instance_groups(config, gpus)
    with pytest.raises(ConfigError) as caught:
        check_instance_groups(config, gpus)
    assert error_text in caught.value.message


@pytest.mark.parametrize(
    "backend, kind", [("pytorch", GPU), ("onnxruntime", GPU), ("coreml", GPU), ("jax", GPU), ("python", CPU)]
)
def test_instances_on_a_mac(backend: str, kind: str) -> None:
    """Frameworks use Metal by default; python models use the CPU, because they would expect CUDA."""
    config = read(f'name: "m" backend: "{backend}"')
    set_instance_groups(config, (0,), is_metal=True)
    (group,) = config.instance_group
    assert (group.Kind.Name(group.kind), group.count) == (kind, 1)


def test_an_ensemble_has_no_instances() -> None:
    """An ensemble gets no instance groups, and passes the check without them."""
    config = read('platform: "ensemble" ensemble_scheduling { }')
    set_instance_groups(config, (0,))
    check_instance_groups(config, (0,))
    assert not config.instance_group
