"""The host's process: `python -m engines host` on a real model repository, with Triton's clients."""

import json
import signal
import socket
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path

import numpy as np
import pytest
import tritonclient.grpc as grpc_client
import tritonclient.http as http_client
from tritonclient.utils import InferenceServerException
from typer.testing import CliRunner

from engines.cli.app import app
from tests.support.host import HostProcess
from tests.support.waiting import eventually

MODELS = Path(__file__).parents[2] / "models"
SERVED = ("adder", "sleeper")


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HostProcess]:
    """A host of two models, that traces each request and restricts one API."""
    directory = tmp_path_factory.mktemp("host")
    options = ["--model-control-mode=explicit", *(f"--load-model={name}" for name in SERVED)]
    options += ["--trace-config=rate=1", f"--trace-config=triton,file={directory / 'trace'}"]
    options += ["--http-restricted-api=logging:secret=xyz", "--grpc-restricted-protocol=logging:secret=xyz"]
    with_host = HostProcess.start([MODELS], directory, extra_args=options)
    yield with_host.wait_ready()
    with_host.stop()


def send_grpc(host: HostProcess, a: list[list[int]]) -> list[list[int]]:
    with grpc_client.InferenceServerClient(host.grpc_url) as client:
        inputs = [grpc_client.InferInput(name, np.shape(a), "INT32") for name in ("a", "b")]
        for each in inputs:
            each.set_data_from_numpy(np.array(a, np.int32))
        total: list[list[int]] = client.infer("adder", inputs).as_numpy("sum").tolist()
        return total


def get(url: str, **headers: str) -> tuple[int, bytes]:
    try:
        with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=120) as reply:
            return reply.status, reply.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


def sample(host: HostProcess, name: str) -> float:
    for line in get(host.metrics_url)[1].decode().splitlines():
        if line.startswith(name):
            return float(line.rpartition(" ")[2])
    raise AssertionError(f"there is no {name}")


def test_clients_are_answered_on_both_fronts(served: HostProcess) -> None:
    """The same model, by gRPC and by REST."""
    assert send_grpc(served, [[1, 2], [3, 4]]) == [[2, 4], [6, 8]]
    with http_client.InferenceServerClient(f"127.0.0.1:{served.http_port}") as client:
        inputs = [http_client.InferInput(name, [1, 2], "INT32") for name in ("a", "b")]
        for each in inputs:
            each.set_data_from_numpy(np.array([[5, 6]], np.int32))
        assert client.infer("adder", inputs).as_numpy("diff").tolist() == [[0, 0]]


def test_tensors_may_lie_in_shared_memory(served: HostProcess) -> None:
    """Inputs are read from, and outputs written to, the client's shared memory."""
    memory = SharedMemory(create=True, size=24)
    try:
        memory.buf[:16] = np.array([1, 2, 3, 4], np.int32).tobytes()
        with grpc_client.InferenceServerClient(served.grpc_url) as client:
            client.register_system_shared_memory("all", f"/{memory.name}", 24)
            inputs = [grpc_client.InferInput(name, [1, 2], "INT32") for name in ("a", "b")]
            for offset, each in zip((0, 8), inputs, strict=True):
                each.set_shared_memory("all", 8, offset)
            wanted = grpc_client.InferRequestedOutput("sum")
            wanted.set_shared_memory("all", 8, 16)
            client.infer("adder", inputs, outputs=[wanted])
            client.unregister_system_shared_memory("all")
        assert np.frombuffer(bytes(memory.buf[16:24]), np.int32).tolist() == [4, 6]
    finally:
        memory.close()
        memory.unlink()


def test_what_has_happened_is_counted(served: HostProcess) -> None:
    """Statistics and metrics agree; a refused request counts nowhere."""
    with grpc_client.InferenceServerClient(served.grpc_url) as client:

        def reported() -> tuple[int, int, int]:
            (model,) = client.get_inference_statistics("adder").model_stats
            return model.inference_stats.success.count, model.inference_count, model.inference_stats.fail.count

        before = reported()
        send_grpc(served, [[1], [2], [3]])
        with pytest.raises(InferenceServerException):
            client.infer("adder", [])
        assert reported() == (before[0] + 1, before[1] + 3, before[2])
        assert sample(served, 'nv_inference_count{model="adder",version="1"}') == before[1] + 3
        assert sample(served, 'nv_inference_pending_request_count{model="adder",version="1"}') == 0
        assert sample(served, 'pointsman_instance_memory_bytes{model="adder",pid=') > 1e6


def test_traces_are_written(served: HostProcess) -> None:
    """A client starts and stops traces, which are written to the file of --trace-config."""
    with grpc_client.InferenceServerClient(served.grpc_url) as client:
        client.update_trace_settings("adder", {"trace_level": "TIMESTAMPS"})
        send_grpc(served, [[1]])
        client.update_trace_settings("adder", {"trace_level": "OFF"})
    records = json.loads((served.ready_path.parent / "trace").read_text())
    assert records[0]["model_name"] == "adder"
    assert [record["timestamps"][0]["name"] for record in records if "timestamps" in record][::6] == [
        "REQUEST_START",
        "INFER_RESPONSE_COMPLETE",
    ]


def test_restricted_apis_want_their_header(served: HostProcess) -> None:
    """Both fronts require the header, each with its own name for it."""
    url = f"{served.http_url}/v2/logging"
    assert get(url) == (403, b'{"error":"This API is restricted, expecting header \'secret\'"}')
    assert get(url, secret="xyz")[0] == 200
    with grpc_client.InferenceServerClient(served.grpc_url) as client:
        with pytest.raises(InferenceServerException, match="expecting header 'triton-grpc-protocol-secret'"):
            client.get_log_settings()
        assert client.get_log_settings({"triton-grpc-protocol-secret": "xyz"}).settings["log_info"].bool_param


def test_sigterm_lets_requests_end(tmp_path: Path) -> None:
    """On SIGTERM the host answers a request in flight, then exits with 0. It serves on for --drain-delay."""
    host = HostProcess.start(
        [MODELS],
        tmp_path,
        extra_args=["--model-control-mode=explicit", "--load-model=sleeper", "--drain-delay=100ms"],
    ).wait_ready()
    with ThreadPoolExecutor(1) as pool:
        body = b'{"inputs":[{"name":"seconds","datatype":"FP32","shape":[1],"data":[3.0]}]}'
        url = f"{host.http_url}/v2/models/sleeper/infer"
        sent = pool.submit(lambda: urllib.request.urlopen(url, body, timeout=120).read())
        eventually(lambda: _runs(host))
        host.process.send_signal(signal.SIGTERM)
        assert json.loads(sent.result())["outputs"][0]["data"] == [3.0]
        host.process.wait(120)  # a second SIGTERM would stop it at once
    host.stop()
    assert "1 requests in flight" in host.log()
    assert "stopping in 0.1 seconds: readiness says no from now on" in host.log()


def test_a_request_that_does_not_end_holds_nothing_up(tmp_path: Path) -> None:
    """After --exit-timeout-secs the request is aborted, its instance is killed, and the host exits with 0."""
    options = ["--model-control-mode=explicit", "--load-model=sleeper", "--exit-timeout-secs=0.1"]
    host = HostProcess.start([MODELS], tmp_path, extra_args=options).wait_ready()
    with socket.create_connection(("127.0.0.1", host.http_port)) as client:
        body = b'{"inputs":[{"name":"seconds","datatype":"FP32","shape":[1],"data":[600]}]}'
        client.sendall(b"POST /v2/models/sleeper/infer HTTP/1.1\r\ncontent-length: %d\r\n\r\n%s" % (len(body), body))
        eventually(lambda: _runs(host))
        host.process.send_signal(signal.SIGTERM)
        host.process.wait(120)
    host.stop()
    assert "Traceback" not in host.log()


def _runs(host: HostProcess) -> bool:
    """Whether a request to `sleeper` is in flight and not yet counted."""
    stats = json.loads(get(f"{host.http_url}/v2/models/sleeper/stats")[1])["model_stats"][0]
    return bool(stats["inference_stats"]["success"]["count"] == 0 and sample(host, "pointsman_requests_in_flight") == 1)


WRONG = [
    (["--model-repository=/nowhere"], 1, "/nowhere"),
    (["--strict-readiness=perhaps"], 2, "neither true nor false"),
    (["--http-restricted-api=wealth:a=b"], 2, "unknown restricted api 'wealth'"),
    (["--trace-config=level=LOUD"], 2, "--trace-config level is"),
    (["--otlp-endpoint=127.0.0.1:4318"], 2, "--otlp-endpoint is a URL such as"),
    (["--cache-config=disk,size=1"], 1, "local or redis"),
    (["--rate-limit-resource=R"], 2, "--rate-limit-resource is"),
    (["--http-header-forward-pattern=("], 2, "'(' is no regular expression of RE2: missing )"),
    (["--grpc-header-forward-pattern=(?=x)"], 2, "invalid perl operator: (?=x"),
    (["--trace-config=rate=-1"], 2, "--trace-config rate is a whole number"),
    (["--cache-config=local,size=-1"], 1, "wants a whole number of bytes"),
    (["--load-model=adder"], 2, "requires --model-control-mode=explicit"),
    (["--ready-file=/nowhere/ready"], 1, "cannot write /nowhere/ready"),
    (["--host=nowhere.invalid"], 1, "cannot listen on nowhere.invalid:0"),
]


@pytest.mark.usefixtures("restored_logs")
@pytest.mark.parametrize("options, exit_code, text", WRONG)
def test_what_cannot_start_reports_why(tmp_path: Path, options: list[str], exit_code: int, text: str) -> None:
    """The error is one line that names the mistake, without a traceback."""
    if not any(option.startswith("--model-repository") for option in options):
        options = [f"--model-repository={tmp_path}", *options]
    ports = [f"--{name}-port=0" for name in ("http", "grpc", "metrics")]
    ended = CliRunner().invoke(app, ["host", *ports, f"--log-file={tmp_path / 'log'}", *options])
    reported = " ".join(ended.output.replace("│", " ").split())
    assert (ended.exit_code, text in reported) == (exit_code, True), ended.output


@pytest.mark.usefixtures("restored_logs")
def test_a_port_in_use_is_reported(tmp_path: Path) -> None:
    """The error names the option that changes the port, and no model is loaded before it."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        options = [f"--model-repository={MODELS}", f"--http-port={port}", f"--log-file={tmp_path / 'log'}"]
        ended = CliRunner().invoke(app, ["host", "--grpc-port=0", "--metrics-port=0", *options])
    assert (ended.exit_code, "choose with --http-port" in ended.output) == (1, True), ended.output
    assert "loaded" not in (tmp_path / "log").read_text()


@pytest.mark.usefixtures("restored_logs")
def test_two_servers_on_one_port_are_reported(tmp_path: Path) -> None:
    """The error names the option of the second server."""
    with socket.create_server(("127.0.0.1", 0)) as cached:
        port = cached.getsockname()[1]
    options = [f"--model-repository={tmp_path}", f"--http-port={port}", f"--grpc-port={port}"]
    ended = CliRunner().invoke(app, ["host", "--metrics-port=0", f"--log-file={tmp_path / 'log'}", *options])
    assert ended.exit_code == 1
    assert f"127.0.0.1:{port}: the http port is the same; choose with --grpc-port" in ended.output
