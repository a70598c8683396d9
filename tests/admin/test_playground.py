"""The playground sends requests to the gateway's own inference port, and reports how they were routed."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import trustme

from tests.support import plain_http
from tests.support.canned_engine import CannedEngine
from tests.support.canned_llm import MODEL, CannedLLM
from tests.support.servers import GatewayProcess


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    directory = tmp_path_factory.mktemp("playground")
    texts = CannedLLM.start(directory / "texts", extra_args=["--interval-seconds", "0.01"])
    with CannedEngine("one") as engine, texts.running():
        rules = f"""
version: 1
engines:
  one: {{endpoints: ["{engine.url}"]}}
  texts: {{protocol: openai, endpoints: ["{texts.http_url}"]}}
routes:
  - {{name: chat, match: {{model: {MODEL}}}, engine: texts}}
  - {{name: split, match: {{model: m}}, experiment: e}}
experiments:
  e: {{arms: [{{name: only, engine: one, weight: 1}}]}}
"""
        server = GatewayProcess.start(rules, directory / "gateway").wait_ready()
        yield server
        server.stop()


def tried(gateway: GatewayProcess, path: str, body: Any = None, **more: Any) -> httpx.Response:
    return plain_http.post(f"{gateway.admin_url}/playground", json={"path": path, "body": body, **more})


def test_an_inference_tells_its_way_and_its_phases(gateway: GatewayProcess) -> None:
    """The reply names route, arm, engine and endpoint; the phases are in milliseconds, and their sum is at most the
    total."""
    reply = tried(gateway, "/v2/models/m/infer", {"inputs": []}, headers={"x-sleep": "0.05"}).json()
    assert (reply["status"], reply["route"], reply["engine"], reply["arm"]) == (200, "split", "one", "only")
    assert reply["body"]["served_by"] == "one"
    assert reply["endpoint"].startswith("http://127.0.0.1:")
    phases = {phase["name"]: phase["milliseconds"] for phase in reply["phases"]}
    assert list(phases) == ["decide", "wait", "retry", "connect", "engine"]
    assert 49 < phases["engine"] <= sum(phases.values()) < reply["seconds"] * 1000


def test_what_the_gateway_refuses_is_shown(gateway: GatewayProcess) -> None:
    """A refused request shows the gateway's error as a client would get it."""
    reply = tried(gateway, "/v2/models/unheard-of/infer", {"inputs": []}).json()
    assert reply["status"] == 404
    assert reply["headers"]["x-pointsman-reason"] == "no_route"
    assert "unheard-of" in reply["body"]["error"]


def test_texts_come_as_they_are_made(gateway: GatewayProcess) -> None:
    """A stream begins with status and route, continues with each piece of text and its time, and finishes with the
    end."""
    body = {"model": MODEL, "messages": [{"role": "user", "content": "count"}], "stream": True, "max_tokens": 8}
    wanted = {"path": "/v1/chat/completions", "body": body}
    with plain_http.stream("POST", f"{gateway.admin_url}/playground/stream", json=wanted) as reply:
        lines = [json.loads(line) for line in reply.iter_lines()]
    begun, *pieces, ended = lines
    assert (begun["status"], begun["route"]) == (200, "chat")
    assert begun["phases"]
    assert len(pieces) > 2
    assert "".join(piece["text"] for piece in pieces).endswith("data: [DONE]\n\n")
    times = [line["seconds"] for line in lines]
    assert times == sorted(times) and ended["ended"] is True


@pytest.mark.parametrize(
    "path, method",
    [
        ("/metrics", "GET"),
        ("http://elsewhere/v2/models/m/infer", "POST"),
        ("//elsewhere/v2", "GET"),
        ("/v2/repository/models/m/load", "POST"),
        ("/v2/models/m/../../x", "GET"),
        ("/v2/models/m/infer\r\nx: y", "POST"),
        ("/v2/logging", "POST"),
        ("/v2/models/m/infer", "GET"),
        ("", "GET"),
    ],
)
def test_only_what_asks_is_sent(gateway: GatewayProcess, path: str, method: str) -> None:
    """Only inference requests are sent, with the operation's own method: no other host, and nothing that changes
    engines."""
    reply = tried(gateway, path, method=method)
    assert reply.status_code == 422
    assert isinstance(reply.json()["detail"], str)


@pytest.mark.parametrize("headers", [{"a b": "1"}, {"": "1"}, {"x": "a\r\nb: c"}, {"x": "é"}])
def test_a_header_that_is_none_is_refused(gateway: GatewayProcess, headers: dict[str, str]) -> None:
    """An invalid header is refused by name."""
    reply = tried(gateway, "/v2/models/m/infer", {"inputs": []}, headers=headers)
    assert reply.status_code == 422
    assert repr(next(iter(headers))) in reply.json()["detail"]


def test_sizes_are_bounded(gateway: GatewayProcess) -> None:
    """A body beyond 4 MiB is refused."""
    reply = tried(gateway, "/v2/models/m/infer", "x" * (4 * 1024 * 1024 + 1))
    assert reply.status_code == 413
    assert "4194304" in reply.json()["detail"]


def test_a_gateway_with_tls_is_asked_by_tls(start_gateway: Callable[..., GatewayProcess], tmp_path: Path) -> None:
    """The playground uses TLS although the certificate has another name; where client certificates are required, it
    explains why it cannot send."""
    authority = trustme.CA()
    issued = authority.issue_cert("gateway.example")
    cert, key, ca = tmp_path / "cert.pem", tmp_path / "key.pem", tmp_path / "ca.pem"
    issued.private_key_pem.write_to_path(key)
    issued.cert_chain_pems[0].write_to_path(cert)
    authority.cert_pem.write_to_path(ca)
    with CannedEngine("one") as engine:
        rules = f"version: 1\nengines: {{one: {{endpoints: ['{engine.url}']}}}}\nroutes: [{{name: all, engine: one}}]\n"
        options = ["--tls-cert", str(cert), "--tls-key", str(key)]
        open_to_all = start_gateway(rules, extra_args=options)
        assert tried(open_to_all, "/v2/models/m/infer", {"inputs": []}).json()["status"] == 200
        asking = start_gateway(rules, extra_args=[*options, "--tls-client-ca", str(ca)])
        reply = tried(asking, "/v2/models/m/infer", {"inputs": []})
        assert reply.status_code == 503
        assert "certificates" in reply.json()["detail"]
