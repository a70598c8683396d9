"""Implicit state in a store: any instance or process can continue a sequence."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engines.core.errors import EngineError, ErrorCode
from engines.runner.implicit_state import States, StoredStates, states_of
from engines.state.factory import open_store
from tests.engines.backends.support import configuration, spec
from tests.engines.state.redis_server import RedisServer

STATES = """
sequence_batching {
  state [
    { input_name: "total" output_name: "total_out" data_type: TYPE_FP32 dims: [ 2 ]
      initial_state: { name: "ones" data_type: TYPE_FP32 dims: [ 2 ] zero_data: true } },
    { input_name: "seen" output_name: "seen_out" data_type: TYPE_INT64 dims: [ -1 ] }
  ]
}
"""
CONFIG = 'name: "m"' + STATES
A_STEP = {"total_out": np.array([1.5, 2.5], np.float32), "seen_out": np.array([7, 8, 9])}


@pytest.fixture
def server() -> Iterator[RedisServer]:
    with RedisServer() as redis_server:
        yield redis_server


def parameter(name: str, text: str) -> str:
    return f' parameters {{ key: "{name}" value {{ string_value: "{text}" }} }}'


def states(server: RedisServer, directory: Path, model: str = "m 1") -> StoredStates:
    store = open_store(server.url, deadline_seconds=2.0)
    return StoredStates(configuration(CONFIG), directory, store, model)


def listed(arrays: dict[str, Any]) -> dict[str, list[float]]:
    return {name: array.tolist() for name, array in arrays.items()}


def test_a_sequence_goes_on_elsewhere(server: RedisServer, tmp_path: Path) -> None:
    """A sequence begins with the configured state. Another process reads the state of the previous step with its dtypes
    and shapes, and may write into the arrays."""
    here, there = states(server, tmp_path), states(server, tmp_path)
    assert listed(here.inputs("k", is_start=True, sequence=5)) == {"total": [0, 0], "seen": [0]}
    here.keep("k", dict(A_STEP), sequence=5)
    stored = there.inputs("other", is_start=False, sequence=5)
    assert listed(stored) == {"total": [1.5, 2.5], "seen": [7, 8, 9]}
    assert [array.dtype for array in stored.values()] == [np.float32, np.int64]
    stored["total"] += 1
    there.keep("other", {"total_out": stored["total"]}, sequence=5)
    assert listed(here.inputs("k", is_start=False, sequence=5)) == {"total": [2.5, 3.5], "seen": [7, 8, 9]}


def test_an_unknown_sequence_must_start(server: RedisServer, tmp_path: Path) -> None:
    """A step without START fails for another id, the same id as text, another model's sequence, and one that has
    ended."""
    here = states(server, tmp_path)
    here.inputs("k", is_start=True, sequence=5)
    here.keep("k", dict(A_STEP), sequence=5)
    other = states(server, tmp_path, "m 2")
    for strange, sequence in ((here, 6), (here, "5"), (other, 5)):
        with pytest.raises(EngineError, match="must specify the START flag") as failure:
            strange.inputs("x", is_start=False, sequence=sequence)
        assert failure.value.code is ErrorCode.INVALID_ARG
    here.keep("k", dict(A_STEP), sequence=5, is_end=True)
    here.drop("k")
    assert len(here) == 0 and server.names() == []
    with pytest.raises(EngineError, match="START"):
        here.inputs("k", is_start=False, sequence=5)


def test_a_step_whose_state_is_not_stored_has_no_effect(server: RedisServer, tmp_path: Path) -> None:
    """The client gets an error and may repeat the step: the previous state is still stored."""
    here = states(server, tmp_path)
    here.inputs("k", is_start=True, sequence=5)
    here.keep("k", dict(A_STEP), sequence=5)
    server.client.config_set("maxmemory", "1")
    with pytest.raises(EngineError, match="ask the step again") as failure:
        here.keep("k", {"total_out": np.zeros(2, np.float32)}, sequence=5)
    assert failure.value.code is ErrorCode.UNAVAILABLE
    server.client.config_set("maxmemory", "0")
    assert listed(here.inputs("k", is_start=False, sequence=5))["total"] == [1.5, 2.5]


def test_a_store_that_does_not_respond_is_reported(server: RedisServer, tmp_path: Path) -> None:
    """A failure of the store is an error to retry, not one of an unknown sequence."""
    here = states(server, tmp_path)
    server.kill()
    with pytest.raises(EngineError, match="ask again") as failure:
        here.inputs("k", is_start=False, sequence=5)
    assert failure.value.code is ErrorCode.UNAVAILABLE


def test_idle_rows_store_nothing(server: RedisServer, tmp_path: Path) -> None:
    """An idle row of a batch belongs to no sequence."""
    here = states(server, tmp_path)
    assert listed(here.inputs("", is_start=False)) == {"total": [0, 0], "seen": [0]}
    here.keep("", dict(A_STEP))
    assert server.names() == []


def test_the_configuration_names_the_store(
    server: RedisServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A URL or an environment variable names the store. If the variable is empty, the instances of this process share a
    local store; without the parameter each instance keeps its own states."""
    (tmp_path / "1").mkdir()
    (tmp_path / "1" / "model.bin").write_bytes(b"weights")
    plain = states_of(spec(tmp_path, configuration(CONFIG)))
    assert type(plain) is States
    by_name = configuration(CONFIG + parameter("STATE_STORE", "env:SOME_STORE"))
    monkeypatch.setenv("SOME_STORE", server.url)
    states_of(spec(tmp_path, by_name)).keep("k", dict(A_STEP), sequence=5)
    assert len(server.names("pointsman:1:state:*:n5")) == 1
    url = configuration(CONFIG + parameter("STATE_STORE", server.url))
    assert listed(states_of(spec(tmp_path, url)).inputs("x", is_start=False, sequence=5))["seen"] == [7, 8, 9]
    (tmp_path / "1" / "model.bin").write_bytes(b"others ")
    with pytest.raises(EngineError, match="START"):
        states_of(spec(tmp_path, url)).inputs("x", is_start=False, sequence=5)
    monkeypatch.delenv("SOME_STORE")
    states_of(spec(tmp_path, by_name)).keep("k", dict(A_STEP), sequence=6)
    assert listed(states_of(spec(tmp_path, by_name)).inputs("x", is_start=False, sequence=6))["seen"] == [7, 8, 9]


WRONG = [
    (parameter("STATE_STORE", "http://host"), "the parameter STATE_STORE: .*begins with one of redis://"),
    (parameter("STATE_STORE", "redis://host") + parameter("STATE_TTL", "soon"), "STATE_TTL is 'soon', and has to be"),
    (parameter("STATE_STORE", "redis://host") + parameter("STATE_SECRET_FILE", "none"), "secret's file .*none cannot"),
]


@pytest.mark.parametrize("text, error_text", WRONG)
def test_a_wrong_parameter_is_named(text: str, error_text: str, tmp_path: Path) -> None:
    """A wrong parameter fails the load, with its valid values."""
    (tmp_path / "1").mkdir()
    with pytest.raises(EngineError, match=error_text):
        states_of(spec(tmp_path, configuration(CONFIG + text)))


def test_strings_are_no_state_of_a_store(tmp_path: Path) -> None:
    """States of strings cannot be stored."""
    (tmp_path / "1").mkdir()
    config = CONFIG.replace("TYPE_INT64", "TYPE_STRING") + parameter("STATE_STORE", "local")
    with pytest.raises(EngineError, match="'seen' is of strings"):
        states_of(spec(tmp_path, configuration(config)))
