"""Client certificates as principals: with the clients that people use, over HTTP/1.1, HTTP/2 and gRPC."""

from __future__ import annotations

import os
import ssl
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from time import time
from typing import Any

import grpc
import httpx
import pytest
import tritonclient.grpc as triton_grpc
import trustme
from cryptography import x509
from tritonclient.utils import InferenceServerException

from gateway.net import client_certificate
from gateway.net.listener_tls import ListenerTls, listener_tls
from gateway.net.tls_files import reload_changed
from tests.dataplane.authenticated import INFER, GrpcEngine, Keys, RestEngine, Served, bearer, engines
from tests.dataplane.test_auth import inputs
from tests.support.client_certificates import Issued, issue
from tests.support.waiting import eventually

RULES = """
version: 1
auth:
  {keys}
  certificates:
    - {{uri: "spiffe://prod.test/ns/{{tenant}}/sa/batch"}}
    - {{uri: "spiffe://prod.test/**", tenant: mesh}}
    - {{dns: "*.Acme.test", tenant: acme}}
    - {{email: "joe@*", tenant: people}}
    - {{subject: "CN=plain,O=Acme\\\\, Inc.", tenant: subject}}
engines:
  rest: {{endpoints: ["http://{rest}"]}}
  by-grpc: {{endpoints: ["grpc://{grpc}"]}}
routes:
  - {{name: of-acme, match: {{model: m, tenant: acme}}, engine: rest}}
  - {{name: secret, match: {{model: secret}}, engine: rest, allow: {{key: "cert:spiffe://prod.test/ns/*/sa/batch"}}}}
  - {{name: limited, match: {{model: limited}}, engine: rest}}
  - {{name: grpc, match: {{model: g}}, engine: by-grpc, allow: {{tenant: [acme, blue]}}}}
  - {{name: others, engine: rest}}
limits:
  - {{name: few, routes: limited, per: [tenant, key], requests_per_second: 0.001, burst: 1}}
"""
NAMES = {
    "batch": x509.UniformResourceIdentifier("spiffe://prod.test/ns/blue/sa/batch"),
    "other": x509.UniformResourceIdentifier("spiffe://prod.test/ns/blue/x/sa/batch"),
    "dns": x509.DNSName("worker.acme.test"),
    "deep": x509.DNSName("a.b.acme.test"),
    "star": x509.DNSName("*.acme.test"),
    "joe": x509.RFC822Name("joe@acme.test"),
    "foreign": x509.UniformResourceIdentifier("spiffe://dev.test/ns/blue/sa/batch"),
}


class Scene:
    def __init__(self, rest: RestEngine, by_grpc: GrpcEngine, folder: Path) -> None:
        self.rest, self.folder = rest, folder
        self.authority = trustme.CA()
        self.ca = folder / "ca.pem"
        self.authority.cert_pem.write_to_path(self.ca)
        server = self.authority.issue_cert("127.0.0.1", "localhost")
        server.cert_chain_pems[0].write_to_path(folder / "cert.pem")
        server.private_key_pem.write_to_path(folder / "key.pem")
        self.clients = {label: issue(folder, self.authority, label, [name]) for label, name in NAMES.items()}
        self.clients["plain"] = issue(folder, self.authority, "plain")
        self.key = Keys(folder).add("by-key")
        self.context = listener_tls(ListenerTls((str(folder / "cert.pem"),), (str(folder / "key.pem"),), str(self.ca)))
        self.addresses = {"rest": rest.address, "grpc": by_grpc.address}
        self.served = Served(self.rules(), folder, self.context)

    def rules(self, keys: str = "keys: keys.yaml") -> str:
        return RULES.format(keys=keys, **self.addresses)

    def tls(self, client: Issued) -> ssl.SSLContext:
        trusting = ssl.create_default_context()
        self.authority.configure_trust(trusting)
        trusting.load_cert_chain(*client.files)
        return trusting

    def client(self, label: str, **more: Any) -> httpx.Client:
        return httpx.Client(base_url=self.served.url, verify=self.tls(self.clients[label]), timeout=120, **more)

    def infer(self, label: str, model: str = "m", **more: Any) -> httpx.Response:
        with self.client(label) as client:
            return client.post(f"/v2/models/{model}/infer", json=INFER, **more)

    def has_closed(self) -> bool:
        """Whether the gateway has closed all connections, as far as it can: TLS waits for clients that do not read."""
        return all(connection._transport.is_closing() for connection in self.served.plane.connections)  # type: ignore[attr-defined]

    def channel(self, label: str) -> grpc.Channel:
        client = self.clients[label]
        credentials = grpc.ssl_channel_credentials(self.authority.cert_pem.bytes(), client.key, client.cert)
        return grpc.secure_channel(self.served.address, credentials)


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    with engines() as (rest, by_grpc):
        it = Scene(rest, by_grpc, tmp_path_factory.mktemp("certificates"))
        try:
            yield it
        finally:
            it.served.stop()


@pytest.mark.parametrize(
    "label, tenant, key",
    [
        ("batch", "blue", "spiffe://prod.test/ns/blue/sa/batch"),
        ("other", "mesh", "spiffe://prod.test/ns/blue/x/sa/batch"),  # `{tenant}` is one part
        ("dns", "acme", "worker.acme.test"),
        ("joe", "people", "joe@acme.test"),
        ("plain", "subject", "CN=plain,O=Acme\\, Inc."),
    ],
)
def test_a_name_of_the_certificate_is_the_principal(scene: Scene, label: str, tenant: str, key: str) -> None:
    """The first entry with a name of the certificate gives tenant and key, to engines and the access log."""
    assert scene.infer(label, headers={"x-tenant": "mallory"}).status_code == 200
    assert scene.rest.received[-1]["x-tenant"] == tenant
    entry = scene.served.entries()[-1]
    assert (entry["tenant"], entry["key"]) == (tenant, f"cert:{key}")


@pytest.mark.parametrize("label", ["foreign", "deep", "star"])
def test_other_certificates_are_refused(scene: Scene, label: str) -> None:
    """A certificate of the authority without a name that the rules know is 401; `*` is one part of a name, and a
    certificate with a wildcard names no caller."""
    refused = scene.infer(label)
    assert (refused.status_code, refused.headers["x-pointsman-reason"]) == (401, "unauthenticated")
    assert "no name that the rules of this gateway know" in refused.text


@pytest.mark.parametrize("http2", [False, True])
def test_rules_go_by_certificates(scene: Scene, http2: bool) -> None:
    """`match`, `allow` and limits go by the tenant and the key of a certificate, for each connection alike."""
    scene.served.use(scene.rules())  # nothing is remembered of limits
    with scene.client("dns", http2=http2) as acme, scene.client("batch", http2=http2) as blue:
        for _ in range(2):  # the second head is known
            found = [client.post("/v2/models/m/infer", json=INFER) for client in (acme, blue)]
            assert [reply.headers["x-pointsman-route"] for reply in found] == ["of-acme", "others"]
            found = [client.post("/v2/models/secret/infer", json=INFER) for client in (acme, blue)]
            assert [reply.status_code for reply in found] == [403, 200]
        assert found[0].http_version == ("HTTP/2" if http2 else "HTTP/1.1")


def test_limits_are_per_certificate(scene: Scene) -> None:
    """A limit per key has an allowance for each certificate's name."""
    found = [scene.infer(label, "limited").status_code for label in ("batch", "other", "batch", "other")]
    assert found == [200, 200, 429, 429]


def test_grpc(scene: Scene) -> None:
    """Unary calls and streams go by the certificate of their channel; a channel with another is refused."""
    statuses = {}
    for label in ("dns", "batch", "joe", "foreign"):
        with scene.channel(label) as channel:
            call = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
            request = b"\x0a\x01g"
            for _ in range(2):
                try:
                    call(request, timeout=120)
                    statuses[label] = "OK"
                except grpc.RpcError as error:
                    statuses[label] = error.code().name
    assert statuses == {"dns": "OK", "batch": "OK", "joe": "PERMISSION_DENIED", "foreign": "UNAUTHENTICATED"}


def test_tritonclient(scene: Scene) -> None:
    """Triton's client shows its certificate, and infers."""
    cert, key = scene.clients["dns"].files
    options = {"root_certificates": str(scene.ca), "private_key": key, "certificate_chain": cert}
    with triton_grpc.InferenceServerClient(scene.served.address, ssl=True, **options) as client:
        client.infer("g", inputs(triton_grpc), client_timeout=120)
        with pytest.raises(InferenceServerException, match=r"may not use|route 'secret'"):
            client.infer("secret", inputs(triton_grpc), client_timeout=120)


def test_a_credential_is_stronger_than_the_certificate(scene: Scene) -> None:
    """A request with a key goes by the key, on the same connection; a wrong key is 401."""
    with scene.client("dns") as client:
        for headers, tenant in (({}, "acme"), (bearer(scene.key), "by-key"), ({}, "acme")):
            assert client.post("/v2/models/m/infer", json=INFER, headers=headers).status_code == 200
            assert scene.rest.received[-1]["x-tenant"] == tenant
        assert client.post("/v2/models/m/infer", json=INFER, headers=bearer("pmi-wrong")).status_code == 401


def test_without_keys_credentials_are_the_engines(scene: Scene) -> None:
    """Where the rules have certificates alone, the field `authorization` goes on to engines."""
    scene.served.use(scene.rules("required: true"))
    try:
        assert scene.infer("dns", headers=bearer("of-the-engine")).status_code == 200
        assert scene.rest.received[-1]["authorization"] == "Bearer of-the-engine"
        scene.served.use(scene.rules("required: false"))
        assert scene.infer("foreign").status_code == 200
        assert "x-tenant" not in scene.rest.received[-1]
    finally:
        scene.served.use(scene.rules())


@pytest.mark.parametrize("http2", [False, True])
def test_a_connection_ends_with_its_certificate(scene: Scene, http2: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once a certificate has ended, requests on its open connections are 401, and the connections end."""
    ends_at = datetime.now(UTC) + timedelta(hours=1)
    client = issue(scene.folder, scene.authority, "short", [NAMES["dns"]], ends_at=ends_at)
    with httpx.Client(base_url=scene.served.url, verify=scene.tls(client), timeout=120, http2=http2) as it:
        assert it.get("/v2/models/m/ready").status_code == 200
        for module in ("identification", "authenticated_head_reader"):
            monkeypatch.setattr(f"gateway.dataplane.context.{module}.time", lambda: time() + 7200)
        refused = it.get("/v2/models/m/ready")
        assert (refused.status_code, "has ended" in refused.text) == (401, True)
        monkeypatch.setattr(client_certificate, "time", lambda: time() + 7200)
        eventually(scene.has_closed)


@pytest.mark.parametrize("http2", [False, True])
def test_connections_of_a_removed_authority_end(scene: Scene, http2: bool) -> None:
    """When the file of the authority changes, open connections end after their requests and are verified anew, also
    where a certificate of the listener is damaged meanwhile."""
    after = trustme.CA()
    cert = scene.folder / "cert.pem"
    good = cert.read_bytes()
    with scene.client("dns", http2=http2) as client:
        assert client.get("/v2/models/m/ready").status_code == 200
        try:
            cert.write_bytes(b"damaged")
            after.cert_pem.write_to_path(scene.ca)
            scene.served.run(reload_changed)
            eventually(scene.has_closed)
            with pytest.raises((httpx.TransportError, ssl.SSLError)):
                client.get("/v2/models/m/ready")
        finally:
            cert.write_bytes(good)
            scene.authority.cert_pem.write_to_path(scene.ca)
            os.utime(scene.ca)
            scene.served.run(reload_changed)
        assert client.get("/v2/models/m/ready").status_code == 200
