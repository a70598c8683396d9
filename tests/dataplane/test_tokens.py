"""JSON web tokens on the inference ports."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import httpx
import pytest
import tritonclient.grpc as triton_grpc
from tritonclient.utils import InferenceServerException

from tests.dataplane.authenticated import Keys, Served, bearer, engines, infer
from tests.dataplane.test_auth import inputs
from tests.support.waiting import eventually

jwt = pytest.importorskip("jwt")

RULES = """
version: 1
auth:
  keys: keys.yaml
  jwt:
    - {{issuer: "https://file", audience: [pointsman, other], jwks: jwks.json, algorithms: [RS256, EdDSA]}}
    - {{issuer: "https://url", audience: pointsman, jwks: "{url}", algorithms: ES256, tenant: org, {bound}}}
    - {{issuer: "https://dead", audience: pointsman, jwks: "http://127.0.0.1:1/keys"}}
engines:
  rest: {{endpoints: ["http://{rest}"]}}
  by-grpc: {{endpoints: ["grpc://{grpc}"]}}
routes:
  - {{name: admins, match: {{model: admin}}, engine: rest, allow: {{claim: {{groups: admin}}}}}}
  - {{name: of-key, match: {{model: of-key}}, engine: rest, allow: {{key: "0123456789ab"}}}}
  - {{name: of-ann, match: {{model: of-ann}}, engine: rest, allow: {{key: "sub:ann"}}}}
  - {{name: of-acme, match: {{model: m, tenant: acme}}, engine: rest}}
  - {{name: short, match: {{model: short, tenant: acme}}, engine: rest, max_body_bytes: 1000}}
  - {{name: grpc, match: {{model: g}}, engine: by-grpc}}
  - {{name: others, engine: rest}}
"""


class Issuer:
    """Signs tokens, and publishes its keys."""

    def __init__(self, name: str, algorithm: str) -> None:
        self.name, self.algorithm = name, algorithm
        self.keys: dict[str, Any] = {}
        self.num_fetched = 0

    def add(self, id: str) -> None:
        from cryptography.hazmat.primitives.asymmetric import ec, rsa

        if self.algorithm == "ES256":
            self.keys[id] = ec.generate_private_key(ec.SECP256R1())
        else:
            self.keys[id] = rsa.generate_private_key(65537, 2048)

    def key_set(self) -> str:
        maker = jwt.algorithms.get_default_algorithms()[self.algorithm]
        listed = [
            {**maker.to_jwk(key.public_key(), as_dict=True), "kid": id, "use": "sig", "alg": self.algorithm}
            for id, key in self.keys.items()
        ]
        return json.dumps({"keys": listed})

    def token(self, id: str, key: Any = None, algorithm: str = "", **claims: Any) -> str:
        given = {
            "iss": self.name,
            "aud": "pointsman",
            "exp": time.time() + 3600,
            "sub": "ann",
            "tenant": "acme",
            **claims,
        }
        given = {name: value for name, value in given.items() if value is not None}
        text: str = jwt.encode(given, key or self.keys[id], algorithm or self.algorithm, headers={"kid": id})
        return text


class Scene:
    served: Served
    rest: Any
    by_grpc: Any
    by_file: Issuer
    by_url: Issuer
    api_key: str


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    folder, it = tmp_path_factory.mktemp("tokens"), Scene()
    it.by_file, it.by_url = Issuer("https://file", "RS256"), Issuer("https://url", "ES256")
    it.by_file.add("a")
    it.by_url.add("a")
    (folder / "jwks.json").write_text(it.by_file.key_set())
    it.api_key = Keys(folder).add("acme")

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            it.by_url.num_fetched += 1
            body = it.by_url.key_set().encode()
            self.send_response(200)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Log nothing."""

    publisher = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=publisher.serve_forever, daemon=True).start()
    with engines() as (it.rest, it.by_grpc):
        url = f"http://127.0.0.1:{publisher.server_port}/keys"
        it.served = Served(
            RULES.format(url=url, bound="refresh_at_most: 0.1s", rest=it.rest.address, grpc=it.by_grpc.address), folder
        )
        try:
            yield it
        finally:
            it.served.stop()
            publisher.shutdown()
            publisher.server_close()


def test_a_token_of_a_file(scene: Scene) -> None:
    """A token whose key is in a file: tenant and subject come from it; a second time it is known. API keys go on."""
    token = scene.by_file.token("a")
    for _ in range(3):
        assert infer(scene.served, {**bearer(token), "x-request-id": "t"}).headers["x-pointsman-route"] == "of-acme"
    assert scene.rest.received[-1]["x-tenant"] == "acme"
    assert "authorization" not in scene.rest.received[-1]
    entry = [entry for entry in scene.served.entries() if entry["request_id"] == "t"][-1]
    assert (entry["tenant"], entry["key"]) == ("acme", "sub:ann")
    assert infer(scene.served, bearer(scene.api_key)).status_code == 200
    assert infer(scene.served, bearer(scene.by_file.token("a", aud=["x", "other"], tenant="zen"))).status_code == 200


@pytest.mark.parametrize("size", [10, 3_000_000])
@pytest.mark.parametrize("http2", [False, True])
def test_bodies_wait_for_the_verification(scene: Scene, size: int, http2: bool) -> None:
    """The body of a request with a new token waits, and arrives whole, by HTTP/1.1 and HTTP/2."""
    body = json.dumps({"inputs": [], "id": "x" * size}).encode()
    versions: dict[str, bool] = {"http1": False, "http2": True} if http2 else {}
    with httpx.Client(timeout=120, **versions) as client:  # type: ignore[arg-type]
        token = scene.by_file.token("a", jti=f"{size}{http2}")
        reply = client.post(f"{scene.served.url}/v2/models/m/infer", content=body, headers=bearer(token))
        assert reply.headers["x-pointsman-route"] == "of-acme"
    assert scene.rest.received[-1]["content-length"] == str(len(body))


@pytest.mark.parametrize("http2", [False, True])
@pytest.mark.parametrize("is_chunked", [False, True])
def test_a_route_bounds_bodies_of_new_tokens(scene: Scene, http2: bool, is_chunked: bool) -> None:
    """`max_body_bytes` of a route holds for the first request with a token as for all others, whether the length is
    known or not, and whether all of the body is there when the token is verified."""
    bodies, received = len(scene.rest.bodies), len(scene.rest.received)

    def pieces() -> Iterator[bytes]:
        yield b"{"
        eventually(lambda: len(scene.rest.received) > received)  # by now the token is verified
        yield b" " * 1000

    versions: dict[str, bool] = {"http1": False, "http2": True} if http2 else {}
    with httpx.Client(timeout=120, **versions) as client:  # type: ignore[arg-type]
        contents: list[Any] = [pieces(), iter([b" " * 1001])] if is_chunked else [b" " * 1001, b" " * 100_000]
        for number, content in enumerate(contents):
            token = scene.by_file.token("a", jti=f"{http2}{is_chunked}{number}")
            reply = client.post(f"{scene.served.url}/v2/models/short/infer", content=content, headers=bearer(token))
            assert (reply.status_code, "max_body_bytes of its route" in reply.text) == (413, True)
        reply = client.post(f"{scene.served.url}/v2/models/short/infer", json={"inputs": []}, headers=bearer(token))
        assert reply.headers["x-pointsman-route"] == "short"
    assert len(scene.rest.bodies) == bodies + 1


def test_grpc_calls(scene: Scene) -> None:
    """gRPC calls and streams with new tokens wait and go on; a refused one is UNAUTHENTICATED, and a good one on the
    same connection passes afterwards."""
    with triton_grpc.InferenceServerClient(scene.served.address) as client:
        for jti in ("1", "2", "2"):
            client.infer("g", inputs(triton_grpc), headers=bearer(scene.by_file.token("a", sub=jti)))
            assert scene.by_grpc.received[-1]["x-tenant"] == "acme"
            with pytest.raises(InferenceServerException) as refused:
                client.infer("g", inputs(triton_grpc), headers=bearer(scene.by_file.token("a", aud="no", sub=jti)))
            assert refused.value.status() == "StatusCode.UNAUTHENTICATED"
        replies: list[Any] = []
        is_there = threading.Event()

        def took(result: Any, error: Any) -> None:
            replies.append(error or result)
            is_there.set()

        client.start_stream(took, headers=bearer(scene.by_file.token("a", sub="stream")))
        client.async_stream_infer("g", inputs(triton_grpc))
        assert is_there.wait(120)
        client.stop_stream()
        assert replies[0].get_response().model_name == "g"


def test_keys_of_a_url_are_fetched_and_rotated(scene: Scene) -> None:
    """Keys are fetched when a token needs them, and again for an unknown key id; the tenant is in another claim."""
    issuer = scene.by_url
    token = issuer.token("a", org="acme", tenant=None)
    assert infer(scene.served, bearer(token)).headers["x-pointsman-route"] == "of-acme"
    issuer.add("b")
    after = issuer.token("b", org="acme", tenant=None)
    deadline = time.monotonic() + 60
    while infer(scene.served, bearer(after)).status_code != 200:  # the bound on fetches, and what was refused, pass
        assert time.monotonic() < deadline
        time.sleep(0.05)
        after = issuer.token("b", org="acme", tenant=None, jti=str(time.monotonic()))
    fetched = issuer.num_fetched
    for number in range(50):
        infer(scene.served, bearer(issuer.token("a", key=issuer.keys["b"], algorithm="ES256", jti=str(number))))
    assert issuer.num_fetched == fetched  # its key id is known


def unsigned(scene: Scene) -> str:
    good = scene.by_file.token("a").split(".")
    text: str = jwt.encode({"x": 1}, "", "none").split(".")[0]
    return f"{text}.{good[1]}."


def with_public_key_as_secret(scene: Scene) -> str:
    """The classic confusion: HMAC by the public key."""
    import base64
    import hashlib
    import hmac

    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    header = base64.urlsafe_b64encode(b'{"alg":"HS256","typ":"JWT","kid":"a"}').rstrip(b"=")
    payload = scene.by_file.token("a").split(".")[1].encode()
    public = scene.by_file.keys["a"].public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    digest = hmac.new(public, header + b"." + payload, hashlib.sha256).digest()
    return b".".join((header, payload, base64.urlsafe_b64encode(digest).rstrip(b"="))).decode()


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda it: it.by_file.token("a", exp=time.time() - 60), "has expired"),
        (lambda it: it.by_file.token("a", exp=None), "not valid"),
        (lambda it: it.by_file.token("a", nbf=time.time() + 600), "not valid"),
        (lambda it: it.by_file.token("a", aud="another"), "not valid"),
        (lambda it: it.by_file.token("a", aud=None), "not valid"),
        (lambda it: it.by_file.token("a", iss="https://evil"), "an issuer that the rules do not name"),
        (lambda it: it.by_file.token("a", iss=None), "an issuer that the rules do not name"),
        (lambda it: it.by_file.token("a", tenant=None), "no claim 'tenant'"),
        (lambda it: it.by_file.token("a", tenant="a\r\nb"), "no claim 'tenant'"),
        (lambda it: it.by_file.token("a", tenant={"x": 1}), "no claim 'tenant'"),
        (lambda it: it.by_file.token("b", key=it.by_file.keys["a"]), "a key that its issuer does not publish"),
        (lambda it: it.by_url.token("a", iss="https://file"), "an algorithm that the rules do not name"),
        (lambda it: it.by_file.token("a")[:-6] + "AAAAAA", "not valid"),
        (lambda it: it.by_file.token("a", algorithm="RS512"), "an algorithm that the rules do not name"),
        (unsigned, "an algorithm that the rules do not name"),
        (with_public_key_as_secret, "an algorithm that the rules do not name"),
        (lambda it: "a.b.c", "not valid"),
        (lambda it: it.by_file.token("a", more="x" * 20000), "longer than 8192 bytes"),
    ],
)
def test_tokens_that_are_refused(scene: Scene, make: Any, message: str) -> None:
    """What is wrong with a token: 401, each time, and no engine receives the request."""
    token, before = make(scene), len(scene.rest.received)
    for _ in range(2):
        refused = infer(scene.served, bearer(token))
        assert (refused.status_code, message in refused.json()["error"]) == (401, True), refused.text
        assert refused.headers["x-pointsman-reason"] == "unauthenticated"
    assert len(scene.rest.received) == before


@pytest.mark.parametrize("tenant", ["acme ", " acme", "\u00a0acme"])
def test_a_tenant_has_no_blanks_around_it(scene: Scene, tenant: str) -> None:
    """Header fields lose them on the way, so that this tenant would be another in some places."""
    refused = infer(scene.served, bearer(scene.by_file.token("a", tenant=tenant)))
    assert refused.status_code == 401 and "tenant" in refused.text


def test_an_issuer_that_cannot_be_reached(scene: Scene) -> None:
    """Without keys nobody can tell: 503, and not 401, which would send clients to log in."""
    token = scene.by_file.token("a", iss="https://dead")
    assert infer(scene.served, bearer(token)).status_code == 503


def test_a_token_ends_with_its_expiry(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """A token that was verified is refused once it has expired, on open connections, too."""
    token = scene.by_file.token("a", jti="ends")
    with httpx.Client(timeout=120) as client, triton_grpc.InferenceServerClient(scene.served.address) as by_grpc:
        url = f"{scene.served.url}/v2/models/m/infer"
        assert [client.post(url, json={}, headers=bearer(token)).status_code for _ in range(3)] == [200] * 3
        by_grpc.infer("g", inputs(triton_grpc), headers=bearer(token))
        later = time.time() + 3700
        for module in (
            "dataplane.context.authenticated_head_reader",
            "dataplane.dispatch.http2",
            "auth.authenticator",
            "auth.token_verifier",
        ):
            monkeypatch.setattr(f"gateway.{module}.time", lambda: later)
        with pytest.raises(InferenceServerException) as refused:
            by_grpc.infer("g", inputs(triton_grpc), headers=bearer(token))
        assert refused.value.status() == "StatusCode.UNAUTHENTICATED"
        assert client.post(url, json={}, headers=bearer(token)).status_code == 401


def test_a_subject_is_no_id_of_a_key(scene: Scene) -> None:
    """A token whose subject is written as the id of an API key is not that key: subjects are named by `sub:`."""
    as_key = scene.by_file.token("a", sub="0123456789ab")
    assert infer(scene.served, bearer(as_key), "of-key").status_code == 403
    assert infer(scene.served, bearer(scene.by_file.token("a")), "of-ann").status_code == 200


def test_claims_let_a_caller_in(scene: Scene) -> None:
    """`allow: {claim: ...}` goes by a claim's text, or any text of a list."""
    codes = [
        infer(scene.served, bearer(scene.by_file.token("a", groups=groups)), "admin").status_code
        for groups in (["ops", "admin"], "admin", ["ops"], None, {"admin": 1})
    ]
    assert codes == [200, 200, 403, 403, 403]
