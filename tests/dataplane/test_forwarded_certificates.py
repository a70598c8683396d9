"""Certificates that clients may show, and those that a proxy has verified: beside API keys, over REST and gRPC."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from pathlib import Path

import grpc
import httpx
import pytest
import trustme
from cryptography import x509

from gateway.net.listener_tls import ListenerTls, listener_tls
from tests.dataplane.authenticated import INFER, GrpcEngine, Keys, RestEngine, Served, bearer, engines
from tests.support.client_certificates import issue

RULES = """
version: 1
identity: {{trusted_proxies: [{proxies}]}}
auth:
  keys: keys.yaml
  required: {required}
  forwarded_certificates: true
  certificates: [{{uri: "spiffe://prod.test/{{tenant}}/*"}}]
engines:
  rest: {{endpoints: ["http://{rest}"]}}
  by-grpc: {{endpoints: ["grpc://{grpc}"]}}
routes:
  - {{name: grpc, match: {{model: g}}, engine: by-grpc, allow: {{tenant: blue}}}}
  - {{name: others, engine: rest}}
"""
BLUE = "By=spiffe://prod.test/gw;Hash=46;URI=spiffe://prod.test/blue/web"
XFCC = "x-forwarded-client-cert"


class Scene:
    def __init__(self, rest: RestEngine, by_grpc: GrpcEngine, folder: Path) -> None:
        self.rest, self.by_grpc, self.folder = rest, by_grpc, folder
        self.authority = trustme.CA()
        server = self.authority.issue_cert("127.0.0.1")
        server.cert_chain_pems[0].write_to_path(folder / "cert.pem")
        server.private_key_pem.write_to_path(folder / "key.pem")
        self.authority.cert_pem.write_to_path(folder / "ca.pem")
        self.key = Keys(folder).add("by-key")
        tls = ListenerTls(
            (str(folder / "cert.pem"),), (str(folder / "key.pem"),), str(folder / "ca.pem"), client_auth="optional"
        )
        self.served = Served(self.rules(), folder, listener_tls(tls))

    def rules(self, proxies: str = "127.0.0.1", required: str = "true") -> str:
        return RULES.format(proxies=proxies, required=required, rest=self.rest.address, grpc=self.by_grpc.address)

    def client(self, name: str = "", authority: trustme.CA | None = None) -> httpx.Client:
        """One that shows a certificate of this URI, if any."""
        trusting = ssl.create_default_context()
        self.authority.configure_trust(trusting)
        if name:
            label = name.rpartition("/")[2]
            uri = x509.UniformResourceIdentifier(name)
            trusting.load_cert_chain(*issue(self.folder, authority or self.authority, label, [uri]).files)
        return httpx.Client(base_url=self.served.url, verify=trusting, timeout=120)

    def infer(self, client: httpx.Client, headers: dict[str, str] | list[tuple[str, str]]) -> tuple[int, str]:
        """The status of an inference, and the tenant that the engine received."""
        reply = client.post("/v2/models/m/infer", json=INFER, headers=headers)
        return reply.status_code, self.rest.received[-1].get("x-tenant", "") if reply.status_code == 200 else ""


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    with engines() as (rest, by_grpc):
        it = Scene(rest, by_grpc, tmp_path_factory.mktemp("forwarded"))
        try:
            yield it
        finally:
            it.served.stop()


def test_a_certificate_that_is_shown_counts_and_none_is_needed(scene: Scene) -> None:
    """With `optional`, a client is known by its certificate or by its key; a certificate of another authority is not
    let in."""
    scene.served.use(scene.rules("10.0.0.0/8"))
    try:
        with scene.client("spiffe://prod.test/red/shown") as shown, scene.client() as plain:
            assert scene.infer(shown, {}) == (200, "red")
            assert scene.infer(shown, bearer(scene.key)) == (200, "by-key")
            assert scene.infer(plain, bearer(scene.key)) == (200, "by-key")
            assert scene.infer(plain, {}) == (401, "")
        with scene.client("spiffe://prod.test/red/foreign", trustme.CA()) as foreign, pytest.raises(httpx.HTTPError):
            scene.infer(foreign, {})
    finally:
        scene.served.use(scene.rules())


def test_the_certificate_that_a_proxy_has_verified_is_the_caller(scene: Scene) -> None:
    """The names in the nearest proxy's element are a principal, as those of a certificate; engines do not get the
    field. A key is stronger, and neither an earlier element nor the field of the tenant counts."""
    with scene.client() as proxy:
        for _ in range(2):  # the second head is known
            assert scene.infer(proxy, {XFCC: BLUE}) == (200, "blue")
        assert XFCC not in scene.rest.received[-1]
        entry = scene.served.entries()[-1]
        assert (entry["tenant"], entry["key"]) == ("blue", "cert:spiffe://prod.test/blue/web")
        assert scene.infer(proxy, {XFCC: BLUE, **bearer(scene.key)}) == (200, "by-key")
        assert scene.infer(proxy, {XFCC: f"URI=spiffe://prod.test/red/x,{BLUE}", "x-tenant": "red"}) == (200, "blue")
        assert scene.infer(proxy, [(XFCC, "URI=spiffe://prod.test/red/x"), (XFCC, BLUE)]) == (200, "blue")
        assert scene.infer(proxy, {XFCC: "URI=spiffe://dev.test/blue/web"}) == (401, "")
        assert scene.infer(proxy, {XFCC: f'Cert=",{BLUE}'}) == (401, "")
        assert scene.infer(proxy, {}) == (401, "")


def test_a_proxy_s_own_certificate_is_not_its_clients(scene: Scene) -> None:
    """Without the field a request of a trusted proxy is anonymous, although the rules know the proxy's certificate."""
    with scene.client("spiffe://prod.test/red/proxy") as proxy:
        assert scene.infer(proxy, {}) == (401, "")
        assert scene.infer(proxy, {XFCC: BLUE}) == (200, "blue")


def test_others_forward_no_certificate(scene: Scene) -> None:
    """From an address that is no trusted proxy the field names nobody, and does not reach engines."""
    for required, status in (("true", 401), ("false", 200)):
        scene.served.use(scene.rules("10.0.0.0/8", required))
        try:
            with scene.client() as client:
                assert scene.infer(client, {XFCC: BLUE}) == (status, "")
                assert scene.infer(client, {XFCC: BLUE, **bearer(scene.key)}) == (200, "by-key")
                assert XFCC not in scene.rest.received[-1]
        finally:
            scene.served.use(scene.rules())


def test_grpc(scene: Scene) -> None:
    """The metadata of a call has the field, too."""
    trust = grpc.ssl_channel_credentials(scene.authority.cert_pem.bytes())
    with grpc.secure_channel(scene.served.address, trust) as channel:
        call = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
        call(b"\x0a\x01g", metadata=[(XFCC, BLUE)], timeout=120)
        assert scene.by_grpc.received[-1]["x-tenant"] == "blue"
        assert XFCC not in scene.by_grpc.received[-1]
        with pytest.raises(grpc.RpcError) as refused:
            call(b"\x0a\x01g", metadata=[(XFCC, BLUE.replace("blue", "red"))], timeout=120)
        assert refused.value.code() is grpc.StatusCode.PERMISSION_DENIED
