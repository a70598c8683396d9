"""A model repository with a language model among others: names in each protocol, loading and unloading."""

import contextlib
import http.client
import json
import shutil
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.engines.paged.front.llm_process import LLMProcess, adapter_folder
from tests.support.child import REPOSITORY
from tests.support.host import HostProcess
from tests.support.waiting import eventually
from tests.support.wire import Wire, send

CONFIG = """
backend: "paged"
parameters {{ key: "MODEL" value {{ string_value: "{folder}" }} }}
parameters {{ key: "max_context" value {{ string_value: "200" }} }}
parameters {{ key: "THREADS" value {{ string_value: "1" }} }}
parameters {{ key: "DTYPE" value {{ string_value: "float32" }} }}
parameters {{ key: "SPECULATION" value {{ string_value: "ngram" }} }}
parameters {{ key: "MAX_SEQUENCES" value {{ string_value: "1" }} }}
parameters {{ key: "MAX_WAITING" value {{ string_value: "1" }} }}
parameters {{ key: "ADAPTERS" value {{ string_value: "pirate=../pirate" }} }}
parameters {{ key: "MEMORY" value {{ string_value: "1" }} }}
"""
EXPLICIT = ["--model-control-mode=explicit", "--load-model=shout", "--http-restricted-api=metadata:admin=key"]
KEY = {"admin": "key"}


@pytest.fixture(scope="module")
def host(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[HostProcess]:
    """A host with a python model and a language model that is not loaded yet."""
    models = tmp_path_factory.mktemp("repository")
    shutil.copytree(REPOSITORY / "engines/samples/models/text", models / "shout")
    config = models / "shout" / "config.pbtxt"
    config.write_text(config.read_text().replace('"text"', '"shout"'))
    (models / "writer" / "1").mkdir(parents=True)
    (models / "writer" / "config.pbtxt").write_text(CONFIG.format(folder=tiny))
    adapter_folder(tiny, tmp_path_factory.mktemp("adapters") / "pirate").rename(models / "pirate")
    server = HostProcess.start([models], tmp_path_factory.mktemp("host"), extra_args=EXPLICIT)
    try:
        yield server.wait_ready()
        server.stop()
    finally:
        server.kill()


def post(host: HostProcess, path: str, body: Any) -> tuple[int, Any]:
    reply = send(host.http_port, "POST", path, json.dumps(body).encode())
    return reply.status, json.loads(reply.body or b"null")


def get(host: HostProcess, path: str) -> tuple[int, Any]:
    reply = send(host.http_port, "GET", path, None, KEY)
    return reply.status, json.loads(reply.body)


def test_a_host_without_language_models_is_a_triton(host: HostProcess) -> None:
    """OpenAI's paths reply 404, as in Triton, until a language model is loaded."""
    nothing = (404, {"error": "Not Found"})
    assert get(host, "/v1/models") == nothing
    assert post(host, "/v1/completions", {"model": "shout", "prompt": "a"}) == nothing


def test_a_language_model_is_loaded_and_found(host: HostProcess) -> None:
    """A loaded language model has its name in every protocol; other models are available over V2 only."""
    status, results = post(host, "/v2/repository/models/writer/load", {})
    assert (status, results) == (200, None)
    cards = get(host, "/v1/models")[1]["data"]
    assert [(card["id"], card.get("parent")) for card in cards] == [("writer", None), ("pirate", "writer")]
    status, results = post(host, "/v1/completions", {"model": "writer", "prompt": "the sea", "max_tokens": 3})
    assert (status, results["usage"]["completion_tokens"]) == (200, 3)
    status, results = post(host, "/v2/models/writer/generate", {"text_input": "the sea", "max_tokens": 3})
    assert status == 200
    assert results["text_output"].startswith("the sea")
    assert post(host, "/v2/models/shout/generate", {"text_input": "a"})[1]["text_output"] == "A"
    status, results = post(host, "/v1/completions", {"model": "shout", "prompt": "a"})
    assert status == 400
    assert results["error"]["message"] == (
        "The model 'shout' is no language model of the paged engine: 'python' runs it, and V2 serves it"
    )
    assert "parameter MEMORY means nothing to it; those that do are ADAPTERS, " in host.log()


def test_what_guards_tritons_apis_guards_openais(host: HostProcess) -> None:
    """The restriction of Triton's metadata API covers OpenAI's model list."""
    reply = send(host.http_port, "GET", "/v1/models")
    error = json.loads(reply.body)["error"]
    assert (reply.status, error["type"]) == (403, "permission_error")
    assert error["message"] == "This API is restricted, expecting header 'admin'"


def test_an_adapter_is_named_as_a_model_or_beside_one(host: HostProcess) -> None:
    """An adapter named as the model or in its own field yields the same text."""
    requested: dict[str, Any] = {"prompt": "the sea", "max_tokens": 8}
    bodies = [{"model": "writer"}, {"model": "pirate"}, {"model": "writer", "lora_name": "pirate"}]
    replies = [post(host, "/v1/completions", requested | body) for body in bodies]
    assert [status for status, _ in replies] == [200, 200, 200]
    plain, named, beside = [results["choices"][0]["text"] for _, results in replies]
    assert plain != named == beside
    assert [results["model"] for _, results in replies] == ["writer", "pirate", "writer"]
    body = {"text_input": "the sea", "max_tokens": 8, "adapter": "pirate", "exclude_input_in_output": True}
    assert post(host, "/v2/models/writer/generate", body)[1]["text_output"] == named
    status, results = post(host, "/v1/completions", requested | {"model": "pirate", "lora_name": "sailor"})
    assert (status, results["error"]["message"]) == (400, "two adapters are named, 'sailor' and 'pirate'; name one")


def test_too_many_waiting_requests_are_refused(host: HostProcess) -> None:
    """One request runs, one waits, and each protocol refuses the next; requests are accepted again once they leave."""
    body = {"model": "writer", "prompt": "the sea", "max_tokens": 190, "stream": True, "ignore_eos": True}
    with contextlib.ExitStack() as clients:
        for _ in range(2):
            connection = http.client.HTTPConnection("127.0.0.1", host.http_port, timeout=120)
            clients.callback(connection.close)
            connection.request("POST", "/v1/completions", json.dumps(body))
        status, results = eventually(lambda: refused_one(host))
        assert results["error"] == {
            "message": "1 requests wait already (max_waiting): try again later",
            "type": "server_error",
            "param": None,
            "code": "overloaded",
        }
        text = {"name": "text_input", "datatype": "BYTES", "shape": [1], "data": ["a"]}
        status, results = post(host, "/v2/models/writer/infer", {"inputs": [text]})
        assert (status, results["error"]) == (503, "1 requests wait already (max_waiting): try again later")
    eventually(lambda: not refused_one(host))


def refused_one(host: HostProcess) -> tuple[int, Any] | None:
    """The error of a short request that the model refuses."""
    status, results = post(host, "/v1/completions", {"model": "writer", "prompt": "a", "max_tokens": 1})
    return (status, results) if status == 503 else None


def stream_through(host: HostProcess, what: Callable[[], Any]) -> None:
    """A long stream runs to its end while `what` is executed."""
    body = {"model": "writer", "prompt": "the sea", "max_tokens": 150, "stream": True, "ignore_eos": True}
    data = json.dumps(body).encode()
    with Wire(host.http_port) as wire:
        wire.send(b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(data), data)
        assert wire.read_line() == b"HTTP/1.1 200 OK\r\n"
        happening = threading.Thread(target=what)
        happening.start()
        text = b""
        while b"[DONE]" not in text:
            line = wire.read_line()
            assert line, text
            text += line
        happening.join()
    assert text.count(b'"finish_reason":"length"') == 1


def test_a_stopping_host_lets_answers_end(host: HostProcess) -> None:
    """On SIGTERM during a stream the client reads the whole stream, then the host exits with status 0."""
    stream_through(host, lambda: host.process.send_signal(signal.SIGTERM))
    assert host.process.wait(120) == 0, host.log()


# A server that fails to start.


def refused(folder: Path, directory: Path, *arguments: str) -> str:
    """The error message of a process that exits with 1."""
    server = LLMProcess.start(folder, directory, extra_args=arguments)
    assert server.process.wait(120) == 1, server.log()
    return next(line for line in server.log().splitlines() if line.startswith("pointsman llm: "))


def test_a_used_port_fails_at_once(tiny: Path, tmp_path: Path) -> None:
    """A port in use is reported before the model is loaded; the error names the option that sets the port."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        message = refused(tiny, tmp_path, "--http-port", str(port))
    assert (
        message == f"pointsman llm: cannot listen on 127.0.0.1:{port}: Address already in use; choose with --http-port"
    )


def test_a_folder_that_cannot_be_loaded_is_named(tiny: Path, tmp_path: Path) -> None:
    """The error has the loader's message about the weights."""
    folder = tmp_path / "broken"
    shutil.copytree(tiny, folder)
    (folder / "model.safetensors").write_bytes(b"\x08\0\0\0\0\0\0\0{}      ")
    message = refused(folder, tmp_path / "run")
    assert message.startswith(f"pointsman llm: {folder}")
