"""Which instances a model gets."""

from pathlib import Path

import pytest
from google.protobuf import text_format

from engines.core.errors import EngineError
from engines.instances.instance import InstancePlan
from engines.instances.instance_set import instance_plans
from engines.instances.process import interpreter_for, threads_each
from engines.repository.config import set_instance_groups
from gateway.protocol import protobuf

CPU, GPU = "KIND_CPU", "KIND_GPU"


def config(text: str):  # type: ignore[no-untyped-def]
    message = protobuf.message("inference.ModelConfig")()
    return text_format.Parse(f'name: "m" {text}', message, descriptor_pool=protobuf.pool())


PLANS = [
    ('backend: "pytorch"', 0, [("m_0", CPU, 0)]),
    ('backend: "pytorch"', 2, [("m_0", GPU, 0), ("m_0", GPU, 1)]),
    ("instance_group { count: 2 kind: KIND_CPU }", 0, [("m_0_0", CPU, 0), ("m_0_1", CPU, 0)]),
    ("instance_group { kind: KIND_AUTO }", 0, [("m_0_0", CPU, 0)]),
    ("instance_group { kind: KIND_AUTO gpus: [1] }", 1, [("m_0_0", CPU, 0)]),
    ("instance_group { kind: KIND_GPU gpus: [1] }", 2, [("m_0_0", GPU, 1)]),
    (
        'instance_group { name: "a" kind: KIND_CPU } instance_group { kind: KIND_MODEL }',
        0,
        [("a_0", CPU, 0), ("m_1_0", "KIND_MODEL", 0)],
    ),
]


@pytest.mark.parametrize(("text", "num_gpus", "expected"), PLANS, ids=range(len(PLANS)))
def test_groups_become_instances(text: str, num_gpus: int, expected: list[tuple[str, str, int]]) -> None:
    """Instances have Triton's names, kinds and devices."""
    message = config(text)
    set_instance_groups(message, range(num_gpus), is_metal=False)
    assert instance_plans(message) == [InstancePlan(*each) for each in expected]


def environment(path: str) -> str:
    return f'parameters {{ key: "EXECUTION_ENV_PATH" value {{ string_value: "{path}" }} }}'


@pytest.mark.parametrize(
    ("path", "settings", "message"),
    [
        ("$$TRITON_MODEL_DIRECTORY/env.tar.gz", None, "is an archive of conda-pack, which this host does not unpack"),
        ("$$TRITON_MODEL_DIRECTORY/nothing", None, "is no virtual environment: there is no .*/nothing/bin/python"),
        ("$$TRITON_MODEL_DIRECTORY/env", "version = 3.6.1\n", "has Python 3.6, and this host runs Python 3"),
    ],
)
def test_environments_that_cannot_be_used(tmp_path: Path, path: str, settings: str | None, message: str) -> None:
    """The error has the reason and a cure."""
    if settings is not None:
        (tmp_path / "env" / "bin").mkdir(parents=True)
        (tmp_path / "env" / "bin" / "python").touch()
        (tmp_path / "env" / "pyvenv.cfg").write_text(settings)
    with pytest.raises(EngineError, match=message):
        interpreter_for(config(environment(path)), tmp_path, 1)


def test_instances_share_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Instances share the CPU's threads, unless the environment sets the number."""
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setenv("MKL_NUM_THREADS", "7")
    created = interpreter_for(config(""), Path("/"), 1000).environment
    assert created["OMP_NUM_THREADS"] == "1" and "MKL_NUM_THREADS" not in created
    assert threads_each(1) >= threads_each(2) >= 1
