"""A private Triton: it starts, reports readiness or why it failed, and leaves nothing behind."""

import json
import socket
from pathlib import Path

import pytest

from gateway.demo.triton import TritonDiedError, TritonProcess
from tests.support.servers import SAMPLE_MODELS
from tests.support.wire import send

pytestmark = pytest.mark.triton

ONLY_PYTHON = ["--model-control-mode=explicit", "--load-model=adder", "--load-model=text"]


def test_sample_models_answer() -> None:
    """The sample models answer, and a stopped server exits with 0."""
    with TritonProcess.start(SAMPLE_MODELS, extra_args=ONLY_PYTHON).wait_ready() as server:
        text = send(server.http_port, "POST", "/v2/models/text/generate", b'{"text_input":"hello"}')
        assert json.loads(text.body)["text_output"] == "HELLO"
        inputs = [{"name": name, "datatype": "INT32", "shape": [1, 1], "data": [5]} for name in "ab"]
        added = send(server.http_port, "POST", "/v2/models/adder/infer", json.dumps({"inputs": inputs}).encode())
        assert [output["data"] for output in json.loads(added.body)["outputs"]] == [[10], [0]]
    assert repr(server).endswith("ended with 0>")


def test_a_killed_server_leaves_nothing_behind() -> None:
    """A crash also ends the stubs and frees their shared memory."""
    server = TritonProcess.start(SAMPLE_MODELS, extra_args=ONLY_PYTHON).wait_ready()
    assert list(Path("/dev/shm").glob(f"{server.shm_prefix}*"))
    assert server.kill() == -9
    assert not list(Path("/dev/shm").glob(f"{server.shm_prefix}*"))


def test_its_ports_are_nobody_elses_while_it_starts() -> None:
    """All ports are reserved from the start, including the metrics port, which Triton binds last."""
    with TritonProcess.start(SAMPLE_MODELS, extra_args=ONLY_PYTHON) as server:
        with socket.socket() as other, pytest.raises(OSError, match="in use"):
            other.bind(("127.0.0.1", server.metrics_port))
        server.wait_ready()
        assert send(server.metrics_port, "GET", "/metrics").status == 200


def test_early_death_is_told_with_the_log(tmp_path: Path) -> None:
    """The error for a server that cannot load its models contains the reason from the log."""
    (tmp_path / "broken" / "1").mkdir(parents=True)
    (tmp_path / "broken" / "config.pbtxt").write_text('backend: "none"')
    with pytest.raises(TritonDiedError, match="failed to load all models"):
        TritonProcess.start(tmp_path, log_path=tmp_path / "log").wait_ready()
