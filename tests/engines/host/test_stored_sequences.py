"""The Mamba sample on two hosts that share a Redis: the second host continues a sequence with the same results."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from engines.samples.repository import MODELS
from tests.engines.state.redis_server import RedisServer
from tests.support.host import HostProcess
from tests.support.wire import Reply, send

pytest.importorskip("jax")

PROMPT = b"There was once a young fox named "
SEQUENCE = 77
NUM_BYTES = 24


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    folder = tmp_path / "repository"
    shutil.copytree(MODELS / "mamba", folder / "mamba")
    return folder


@contextmanager
def host(repository: Path, directory: Path) -> Iterator[HostProcess]:
    process = HostProcess.start([repository], directory)
    try:
        yield process.wait_ready()
    finally:
        process.kill()


def send_request(on: HostProcess, tokens: list[int], *, start: bool = False, end: bool = False) -> Reply:
    body = {
        "inputs": [{"name": "tokens", "datatype": "INT32", "shape": [1, len(tokens)], "data": tokens}],
        "parameters": {"sequence_id": SEQUENCE, "sequence_start": start, "sequence_end": end},
    }
    data = json.dumps(body).encode()
    return send(on.http_port, "POST", "/v2/models/mamba/infer", data, {"content-type": "application/json"})


def step(on: HostProcess, tokens: list[int], *, start: bool = False, end: bool = False) -> tuple[int, list[float]]:
    """The most likely next byte, and the logits of all."""
    reply = send_request(on, tokens, start=start, end=end)
    assert reply.status == 200, reply.body
    reported = {each["name"]: each["data"] for each in json.loads(reply.body)["outputs"]}
    return reported["token"][0], reported["logits"]


def write(on: HostProcess, output: list[tuple[int, list[float]]], until: int) -> None:
    """Extend the sequence to this number of bytes."""
    while len(output) < until:
        tokens = [output[-1][0]] if output else list(PROMPT)
        output.append(step(on, tokens, start=not output, end=len(output) == NUM_BYTES - 1))


def test_a_sequence_goes_on_on_another_host(repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After the first host is killed in mid-sequence, the second continues with the same bytes and logits as an
    undisturbed run. The store is empty once the sequence has ended."""
    undisturbed: list[tuple[int, list[float]]] = []
    monkeypatch.delenv("POINTSMAN_STATE_STORE", raising=False)
    with host(repository, tmp_path / "undisturbed") as alone:
        write(alone, undisturbed, NUM_BYTES)
        assert "must specify the START flag" in send_request(alone, [65]).body.decode(), "it has ended"
    with RedisServer() as redis_server:
        monkeypatch.setenv("POINTSMAN_STATE_STORE", redis_server.url)
        output: list[tuple[int, list[float]]] = []
        with host(repository, tmp_path / "first") as first:
            write(first, output, NUM_BYTES // 2)
            first.kill()
        assert len(redis_server.names(f"pointsman:1:state:*:n{SEQUENCE}")) == 1
        with host(repository, tmp_path / "second") as second:
            write(second, output, NUM_BYTES)
            assert output == undisturbed
            assert redis_server.names() == []
            reply = send_request(second, [65])
            assert reply.status == 400 and b"its state is not in the store" in reply.body
            redis_server.kill()
            reply = send_request(second, [65], start=True)
            assert reply.status == 503 and b"cannot be kept" in reply.body


def test_the_sample_has_learned_to_write(repository: Path, tmp_path: Path) -> None:
    """The sample generates words of letters, separated by blanks."""
    with host(repository, tmp_path / "host") as alone:
        output: list[tuple[int, list[float]]] = []
        write(alone, output, NUM_BYTES)
    text = bytes(token for token, _ in output).decode()
    assert " " in text and all(each.isalpha() or each in " .,!?\"'\n" for each in text), text
