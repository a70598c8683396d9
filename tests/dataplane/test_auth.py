"""`auth:` on the inference ports, with the clients that people use."""

from __future__ import annotations

import queue
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anthropic
import grpc
import httpx
import numpy as np
import openai
import pytest
import tritonclient.grpc as triton_grpc
import tritonclient.http as triton_http
from grpc_health.v1 import health_pb2, health_pb2_grpc
from tritonclient.utils import InferenceServerException

from tests.dataplane.authenticated import CHAT, GrpcEngine, Keys, RestEngine, Served, bearer, engines, infer
from tests.support import plain_http

RULES = """
version: 1
auth: {{keys: keys.yaml{auth}}}
identity: {{{identity}}}
engines:
  rest: {{endpoints: ["http://{rest}"]}}
  chat: {{protocol: openai, endpoints: ["http://{rest}"]}}
  by-grpc: {{endpoints: ["grpc://{grpc}"]}}
routes:
  - {{name: of-acme, match: {{model: m, tenant: acme}}, engine: rest}}
  - {{name: grpc, match: {{model: g}}, engine: by-grpc}}
  - {{name: chat, match: {{model: chat}}, engine: chat}}
  - {{name: secret, match: {{model: secret}}, engine: rest, allow: {{tenant: acme}}}}
  - {{name: secret-grpc, match: {{model: secret-grpc}}, engine: by-grpc, allow: {{tenant: acme}}}}
  - {{name: secret-chat, match: {{model: secret-chat}}, engine: chat, model: chat, allow: {{tenant: acme}}}}
  - {{name: in-body, match: {{model: open, parameter: {{level: high}}}}, engine: rest, allow: {{tenant: acme}}}}
  - name: not-all
    match: {{model: not-all}}
    engine: rest
    allow: [{{tenant: "a*"}}, {{tenant: zen}}]
    refuse: {{key: "{rotated}"}}
  - {{name: held, match: {{model: held}}, engine: chat, model: chat, session: {{history: engine}}}}
  - {{name: split, match: {{model: split}}, experiment: by-tenant}}
  - {{name: limited, match: {{model: limited}}, engine: rest}}
  - {{name: others, engine: rest}}
experiments:
  by-tenant:
    unit: "header:x-tenant"
    arms: [{{name: a, engine: rest, weight: 1}}, {{name: b, engine: rest, model: m, weight: 1}}]
limits:
  - {{name: few, routes: limited, per: [tenant, key], requests_per_second: 0.001, burst: 2}}
"""


class Scene:
    """The engines, the keys and the data plane of the tests here."""

    def __init__(self, rest: RestEngine, by_grpc: GrpcEngine, folder: Path) -> None:
        self.rest, self.by_grpc = rest, by_grpc
        self.keys = Keys(folder)
        self.acme = self.keys.add("acme", name="batch")
        self.acme_new = self.keys.add("acme", "rotated", name="batch")
        self.zen = self.keys.add("zen")
        self.old = self.keys.add("acme", "old", expires="2020-01-01")
        self.served = Served(self.rules(), folder)

    def rules(self, auth: str = "", identity: str = "") -> str:
        addresses = {"rest": self.rest.address, "grpc": self.by_grpc.address}
        return RULES.format(auth=auth, identity=identity, rotated=self.keys.ids["rotated"], **addresses)

    @property
    def url(self) -> str:
        return self.served.url


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    with engines() as (rest, by_grpc):
        it = Scene(rest, by_grpc, tmp_path_factory.mktemp("auth"))
        try:
            yield it
        finally:
            it.served.stop()


def inputs(module: Any) -> list[Any]:
    tensor = module.InferInput("i", [1], "BYTES")
    tensor.set_data_from_numpy(np.array([b"x"], dtype=object))
    return [tensor]


OPEN = ["/v2/health/live", "/v2/health/ready"]
CLOSED = ["/v2", "/v2/models/m", "/v2/models/stats", "/v2/models/m/config", "/v2/models/m/ready", "/v1/models"]


@pytest.mark.parametrize("path", OPEN)
def test_health_is_open(scene: Scene, path: str) -> None:
    """Health endpoints answer whoever calls, with a wrong key too."""
    for headers in ({}, bearer("pmi-nonsense")):
        assert plain_http.get(scene.url + path, headers=headers).status_code in (200, 400)


@pytest.mark.parametrize("path", CLOSED)
def test_all_else_needs_a_key(scene: Scene, path: str) -> None:
    """Metadata, statistics and lists need a key, by HTTP/1.1."""
    refused = plain_http.get(scene.url + path)
    assert refused.status_code == 401
    assert refused.headers["www-authenticate"] == 'Bearer realm="pointsman"'
    assert refused.headers["x-pointsman-reason"] == "unauthenticated"
    assert plain_http.get(scene.url + path, headers=bearer(scene.acme)).status_code != 401


@pytest.mark.parametrize("path", ["/v2/repository/index", "/feedback", "/v2/repository/models/m/unload", "/v2/logging"])
def test_fleet_calls_need_a_key(scene: Scene, path: str) -> None:
    """Calls about the fleet need a key, and no engine receives one without."""
    before = len(scene.rest.received)
    assert plain_http.post(scene.url + path, json={}).status_code == 401
    assert len(scene.rest.received) == before


@pytest.mark.parametrize(
    "headers", [lambda key: bearer(key), lambda key: {"x-api-key": key}, lambda key: {"api-key": key}]
)
def test_keys_come_in_the_fields_that_clients_use(scene: Scene, headers: Any) -> None:
    """A key is taken from each field, and its tenant goes to the rules and to the engine; the key itself does not."""
    reply = infer(scene.served, headers(scene.acme))
    assert (reply.status_code, reply.headers["x-pointsman-route"]) == (200, "of-acme")
    received = scene.rest.received[-1]
    assert received["x-tenant"] == "acme"
    assert scene.acme not in str(received)
    assert infer(scene.served, headers(scene.zen)).headers["x-pointsman-route"] == "others"


def test_two_keys_of_a_tenant_are_valid_at_once(scene: Scene) -> None:
    """Rotation: the old key and the new one open the same."""
    for key in (scene.acme, scene.acme_new):
        assert infer(scene.served, bearer(key)).headers["x-pointsman-route"] == "of-acme"


def changed(key: str) -> str:
    return key[:-1] + ("A" if key[-1] != "A" else "B")


@pytest.mark.parametrize(
    "headers",
    [
        lambda it: bearer(changed(it.acme)),
        lambda it: bearer(it.acme + "x"),
        lambda it: bearer(it.acme.upper()),
        lambda it: bearer("pmi-000000000000-" + it.acme[17:]),
        lambda it: {"authorization": "Bearer"},
        lambda it: {"authorization": f"Basic {it.acme}"},
        lambda it: {"authorization": it.acme},
        lambda it: {"x-api-key": ""},
        lambda it: {**bearer(it.acme), "x-api-key": it.zen},
        lambda it: {**bearer("nonsense"), "x-api-key": it.zen},
    ],
)
def test_wrong_keys_are_refused(scene: Scene, headers: Any) -> None:
    """A key that is wrong in one character, and two different keys, are refused; the reply has nothing of them."""
    before = len(scene.rest.received)
    for _ in range(3):  # heads are cached when they come again
        refused = infer(scene.served, headers(scene))
        assert refused.status_code == 401
        assert 'error="invalid_token"' in refused.headers["www-authenticate"]
        assert scene.acme[5:] not in refused.text
    assert len(scene.rest.received) == before


def test_an_expired_key_is_refused(scene: Scene) -> None:
    """`expires` in the past: 401 that says so."""
    refused = infer(scene.served, bearer(scene.old))
    assert (refused.status_code, refused.json()) == (401, {"error": "the credential has expired"})


@pytest.mark.parametrize("http2", [False, True])
def test_the_clients_tenant_is_not_believed(scene: Scene, http2: bool) -> None:
    """The tenant field of a client is dropped, however often and wherever it stands."""
    more: dict[str, Any] = {"http1": not http2, "http2": http2} if http2 else {}
    with httpx.Client(**more, timeout=120) as client:
        for headers in ([("x-tenant", "acme")], [("x-tenant", "zen"), ("X-Tenant", "acme")]):
            fields = [*headers, *bearer(scene.zen).items()]
            reply = client.post(f"{scene.url}/v2/models/m/infer", content=b'{"inputs":[]}', headers=fields)
            assert reply.headers["x-pointsman-route"] == "others"
            assert scene.rest.received[-1]["x-tenant"] == "zen"


def test_a_connection_field_does_not_take_the_tenant_away(scene: Scene) -> None:
    """`connection: x-tenant, authorization` is read by the strict reader: the principal stays."""
    reply = infer(scene.served, {**bearer(scene.acme), "connection": "keep-alive, x-tenant, authorization"})
    assert reply.status_code == 401  # what a client declares to be of this hop alone is no credential
    reply = infer(scene.served, {**bearer(scene.acme), "connection": "keep-alive, x-tenant", "x-tenant": "zen"})
    assert reply.headers["x-pointsman-route"] == "of-acme"
    assert scene.rest.received[-1]["x-tenant"] == "acme"


def test_openai_clients(scene: Scene) -> None:
    """The openai client sends its key, and reads refusals as its own errors."""
    with openai.OpenAI(base_url=f"{scene.url}/v1", api_key=scene.acme, max_retries=0) as client:
        reply = client.chat.completions.create(model="chat", messages=CHAT["messages"])  # type: ignore[call-overload]
        assert reply.choices[0].message.content == "yes"
    assert "authorization" not in scene.rest.received[-1]
    with openai.OpenAI(base_url=f"{scene.url}/v1", api_key="sk-wrong", max_retries=0) as client:
        with pytest.raises(openai.AuthenticationError) as refused:
            client.chat.completions.create(model="chat", messages=CHAT["messages"])  # type: ignore[call-overload]
        assert refused.value.code == "unauthenticated"
        assert refused.value.type == "authentication_error"


def test_anthropic_clients(scene: Scene) -> None:
    """Anthropic's client sends `x-api-key`, and reads a refusal as its own error."""
    message: Any = {"model": "chat", "max_tokens": 5, "messages": CHAT["messages"]}
    with anthropic.Anthropic(base_url=scene.url, api_key=scene.acme, max_retries=0) as client:
        assert client.messages.create(**message).content[0].text == "yes"
    with anthropic.Anthropic(base_url=scene.url, api_key="wrong", max_retries=0) as client:
        with pytest.raises(anthropic.AuthenticationError) as refused:
            client.messages.create(**message)
        assert refused.value.body["error"]["type"] == "authentication_error"  # type: ignore[index,call-overload]


def test_tritons_http_client(scene: Scene) -> None:
    """tritonclient's HTTP client: health is open, inferences need the key."""
    with triton_http.InferenceServerClient(scene.served.address) as client:
        assert client.is_server_live()
        with pytest.raises(InferenceServerException, match="needs an API key"):
            client.infer("m", inputs(triton_http))
        result = client.infer("m", inputs(triton_http), headers=bearer(scene.acme))
        assert result.get_response()["model_name"] == "m"


@pytest.mark.parametrize("model, engine", [("g", "by_grpc"), ("m", "rest")])
def test_tritons_grpc_client(scene: Scene, model: str, engine: str) -> None:
    """tritonclient's gRPC client, to engines of gRPC and of REST: UNAUTHENTICATED without a key; the engine receives
    the tenant and not the key."""
    with triton_grpc.InferenceServerClient(scene.served.address) as client:
        assert client.is_server_live()
        for headers in ({}, bearer(changed(scene.acme))):
            with pytest.raises(InferenceServerException) as refused:
                client.infer(model, inputs(triton_grpc), headers=headers)
            assert refused.value.status() == "StatusCode.UNAUTHENTICATED"
        for key, tenant in ((scene.acme, "acme"), (scene.zen, "zen"), (scene.acme, "acme")):
            client.infer(model, inputs(triton_grpc), headers={**bearer(key), "x-tenant": "evil"})
            received = getattr(scene, engine).received[-1]
            assert received["x-tenant"] == tenant
            assert key not in str(received)
        with pytest.raises(InferenceServerException) as refused:
            client.get_model_repository_index()
        assert refused.value.status() == "StatusCode.UNAUTHENTICATED"
        client.get_model_repository_index(headers=bearer(scene.acme))


def test_grpc_health_is_open_and_reflection_is_not(scene: Scene) -> None:
    """grpc.health.v1 answers whoever calls; server reflection needs a key."""
    from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

    with grpc.insecure_channel(scene.served.address) as channel:
        health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=120)
        stub = reflection_pb2_grpc.ServerReflectionStub(channel)
        request = reflection_pb2.ServerReflectionRequest(list_services="")
        with pytest.raises(grpc.RpcError) as refused:
            list(stub.ServerReflectionInfo(iter([request]), timeout=120))
        assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED
        metadata = [*bearer(scene.acme).items()]
        assert list(stub.ServerReflectionInfo(iter([request]), metadata=metadata, timeout=120))


def test_limits_count_the_verified_caller(scene: Scene) -> None:
    """Two requests of a tenant's key pass; a third does not, whatever tenant it names, by REST and gRPC alike."""
    key = scene.keys.of["rotated"]
    codes = [infer(scene.served, {**bearer(key), "x-tenant": str(at)}, "limited").status_code for at in range(2)]
    codes += [infer(scene.served, {"x-api-key": key, "x-tenant": "new", "x-request-id": "r"}, "limited").status_code]
    assert codes == [200, 200, 429]
    with triton_grpc.InferenceServerClient(scene.served.address) as client:
        with pytest.raises(InferenceServerException) as refused:
            client.infer("limited", inputs(triton_grpc), headers={**bearer(key), "x-tenant": "other"})
        assert refused.value.status() == "StatusCode.RESOURCE_EXHAUSTED"
        client.infer("limited", inputs(triton_grpc), headers=bearer(scene.acme))


def test_the_access_log_names_tenant_and_key(scene: Scene) -> None:
    """The access log has the tenant and the key's id of each request, and no secret."""
    infer(scene.served, {**bearer(scene.acme), "x-request-id": "by-rest"})
    infer(scene.served, {"x-request-id": "by-nobody"})
    with triton_grpc.InferenceServerClient(scene.served.address) as client:
        client.infer("g", inputs(triton_grpc), headers={**bearer(scene.zen), "x-request-id": "by-grpc"})
    found = {entry["request_id"]: (entry["tenant"], entry["key"]) for entry in scene.served.entries()}
    assert found["by-rest"] == ("acme", scene.keys.ids["acme"])
    assert found["by-grpc"] == ("zen", scene.keys.ids["zen"])
    assert found["by-nobody"] == ("", "")
    assert not any(key[5:] in scene.served.log.getvalue() for key in scene.keys.of.values())


def test_other_settings(scene: Scene) -> None:
    """`required: false` lets anonymous requests go on, and no wrong ones; `forward: true` sends the key on; a key that
    is taken out of its file opens nothing more, on connections that are open too."""
    served = scene.served
    with httpx.Client(timeout=120) as client, triton_grpc.InferenceServerClient(served.address) as by_grpc:
        post: Any = lambda headers: client.post(f"{scene.url}/v2/models/m/infer", json={}, headers=headers)  # noqa: E731
        assert [post(bearer(scene.acme)).status_code for _ in range(3)] == [200] * 3
        by_grpc.infer("g", inputs(triton_grpc), headers=bearer(scene.acme))
        try:
            served.use(scene.rules(", required: false, forward: true"))
            assert post(bearer(scene.acme)).status_code == 200
            assert scene.rest.received[-1]["authorization"] == f"Bearer {scene.acme}"
            assert post({"x-tenant": "acme"}).headers["x-pointsman-route"] == "others"
            assert "x-tenant" not in scene.rest.received[-1]
            by_grpc.infer("g", inputs(triton_grpc), headers={"x-tenant": "acme"})
            assert "x-tenant" not in scene.by_grpc.received[-1]
            by_grpc.infer("g", inputs(triton_grpc), headers=bearer(scene.acme))
            assert scene.by_grpc.received[-1]["authorization"] == f"Bearer {scene.acme}"
            assert post(bearer(changed(scene.acme))).status_code == 401
            (served._file.parent / "none.yaml").write_text("# nobody\n")
            served.use(scene.rules().replace("keys.yaml", "none.yaml"))
            assert post(bearer(scene.acme)).status_code == 401
            with pytest.raises(InferenceServerException) as refused:
                by_grpc.infer("g", inputs(triton_grpc), headers=bearer(scene.acme))
            assert refused.value.status() == "StatusCode.UNAUTHENTICATED"
        finally:
            served.use(scene.rules())
        assert post(bearer(scene.acme)).status_code == 200


def test_a_route_that_may_not_be_used_is_403(scene: Scene) -> None:
    """Who may not use the route that matches is refused, and no later route takes the request: decided by the head, by
    the model in the body, by a parameter in the body, and by gRPC."""
    before = len(scene.rest.received), len(scene.by_grpc.received)
    refused = infer(scene.served, bearer(scene.zen), "secret")
    assert (refused.status_code, refused.json()) == (403, {"error": "this caller may not use model 'secret'"})
    assert refused.headers["x-pointsman-reason"] == "forbidden"
    for path in ("secret", "secret/config", "secret/ready", "secret/stats"):
        assert plain_http.get(f"{scene.url}/v2/models/{path}", headers=bearer(scene.zen)).status_code == 403
    high = {"inputs": [], "parameters": {"level": "high"}}
    url = f"{scene.url}/v2/models/open/infer"
    assert plain_http.post(url, json=high, headers=bearer(scene.zen)).status_code == 403
    chat = {**CHAT, "model": "secret-chat"}
    by_chat = plain_http.post(f"{scene.url}/v1/chat/completions", json=chat, headers=bearer(scene.zen))
    assert (by_chat.status_code, by_chat.json()["error"]["type"]) == (403, "permission_error")
    with triton_grpc.InferenceServerClient(scene.served.address) as by_grpc:
        for model in ("secret", "secret-grpc"):
            with pytest.raises(InferenceServerException) as error:
                by_grpc.infer(model, inputs(triton_grpc), headers=bearer(scene.zen))
            assert error.value.status() == "StatusCode.PERMISSION_DENIED"
        assert before == (len(scene.rest.received), len(scene.by_grpc.received))
        by_grpc.infer("secret-grpc", inputs(triton_grpc), headers=bearer(scene.acme))
    assert infer(scene.served, bearer(scene.acme), "secret").headers["x-pointsman-route"] == "secret"
    assert plain_http.post(url, json=high, headers=bearer(scene.acme)).headers["x-pointsman-route"] == "in-body"
    assert plain_http.post(url, json={"inputs": []}, headers=bearer(scene.zen)).headers["x-pointsman-route"] == "others"


def test_refuse_is_stronger_than_allow(scene: Scene) -> None:
    """A key that `refuse` names may not use what its tenant may."""
    codes = [infer(scene.served, bearer(key), "not-all").status_code for key in (scene.acme, scene.zen, scene.acme_new)]
    assert codes == [200, 200, 403]


def test_lists_show_what_the_caller_may_use(scene: Scene) -> None:
    """`/v1/models` and the repository index, by REST and gRPC, leave out models that the caller may not use."""
    shown: dict[str, tuple[set[str], set[str], set[str]]] = {}
    for key in (scene.acme, scene.zen):
        with openai.OpenAI(base_url=f"{scene.url}/v1", api_key=key) as client:
            listed = {model.id for model in client.models.list()}
        with triton_http.InferenceServerClient(scene.served.address) as by_http:
            index = by_http.get_model_repository_index(headers=bearer(key))
        with triton_grpc.InferenceServerClient(scene.served.address) as by_grpc:
            models = by_grpc.get_model_repository_index(headers=bearer(key)).models
        shown[key] = listed, {model["name"] for model in index}, {model.name for model in models}
    for of_acme, of_zen in zip(shown[scene.acme], shown[scene.zen], strict=True):
        assert "secret" in of_acme
        assert of_zen == of_acme - {"secret", "secret-grpc", "secret-chat"}


def test_trusted_callers_may_name_the_tenant(scene: Scene) -> None:
    """With `trust_header`, and from `trusted_proxies`, the tenant's header counts: with a key, and once."""
    try:
        for identity in ("trust_header: true", "trusted_proxies: [10.0.0.0/8, 127.0.0.1]"):
            scene.served.use(scene.rules(identity=identity))
            named = {**bearer(scene.zen), "x-tenant": "acme"}
            for _ in range(3):
                assert infer(scene.served, named).headers["x-pointsman-route"] == "of-acme"
            assert scene.rest.received[-1]["x-tenant"] == "acme"
            assert infer(scene.served, bearer(scene.zen)).headers["x-pointsman-route"] == "others"
            assert infer(scene.served, {"x-tenant": "acme"}).status_code == 401
            with triton_grpc.InferenceServerClient(scene.served.address) as client:
                client.infer("secret-grpc", inputs(triton_grpc), headers=named)
            twice = [*bearer(scene.zen).items(), ("x-tenant", "acme"), ("x-tenant", "zen")]
            assert plain_http.post(f"{scene.url}/v2/models/m/infer", json={}, headers=twice).status_code == 400
        scene.served.use(scene.rules(identity="trusted_proxies: 10.0.0.0/8"))
        assert infer(scene.served, named).headers["x-pointsman-route"] == "others"
    finally:
        scene.served.use(scene.rules())


@pytest.mark.parametrize("identity", ["trust_header: true", "trusted_proxies: 127.0.0.1"])
def test_only_verified_callers_name_a_tenant(scene: Scene, identity: str) -> None:
    """Where a credential is not required, an anonymous caller names no tenant, by REST and gRPC: it may not use what is
    allowed to a tenant, and engines receive no tenant."""
    scene.served.use(scene.rules(", required: false", identity))
    try:
        for _ in range(2):
            assert infer(scene.served, {"x-tenant": "acme"}, "secret").status_code == 401
            assert infer(scene.served, {"x-tenant": "acme"}).headers["x-pointsman-route"] == "others"
            assert "x-tenant" not in scene.rest.received[-1]
        with triton_grpc.InferenceServerClient(scene.served.address) as client:
            with pytest.raises(InferenceServerException) as refused:
                client.infer("secret-grpc", inputs(triton_grpc), headers={"x-tenant": "acme"})
            assert refused.value.status() == "StatusCode.UNAUTHENTICATED"
        assert infer(scene.served, {**bearer(scene.zen), "x-tenant": "acme"}, "secret").status_code == 200
    finally:
        scene.served.use(scene.rules())


def test_tenants_that_trusted_callers_name_are_bounded(scene: Scene) -> None:
    """An empty field leaves the key's tenant; a name of more than 256 bytes is refused."""
    scene.served.use(scene.rules(identity="trust_header: true"))
    try:
        assert infer(scene.served, {**bearer(scene.acme), "x-tenant": ""}).headers["x-pointsman-route"] == "of-acme"
        assert infer(scene.served, {**bearer(scene.acme), "x-tenant": "a" * 256}).status_code == 200
        refused = infer(scene.served, {**bearer(scene.acme), "x-tenant": "a" * 257})
        assert (refused.status_code, refused.json()) == (400, {"error": "the field x-tenant is longer than 256 bytes"})
    finally:
        scene.served.use(scene.rules())


def test_conversations_belong_to_the_verified_tenant(scene: Scene) -> None:
    """Two tenants that name one session, and each other, have a conversation each: the engine gets the conversation's
    id, which has the tenant in it."""
    chat = {**CHAT, "model": "held"}

    def conversation(**headers: str) -> str:
        headers = {"x-session-id": "s1", **headers}
        assert plain_http.post(f"{scene.url}/v1/chat/completions", json=chat, headers=headers).status_code == 200
        return scene.rest.received[-1]["x-session-id"]

    of_acme = conversation(**bearer(scene.acme))
    assert of_acme == conversation(**bearer(scene.acme_new))
    assert of_acme != conversation(**bearer(scene.zen))
    assert of_acme != conversation(**bearer(scene.zen), **{"x-tenant": "acme"})


def test_a_tenant_keeps_its_arm(scene: Scene) -> None:
    """An experiment whose unit is the tenant's header goes by the verified tenant, whatever the client writes."""
    arms = {
        key: {
            infer(scene.served, {**bearer(key), "x-tenant": str(at), "x-request-id": str(at)}, "split").headers[
                "x-pointsman-arm"
            ]
            for at in range(12)
        }
        for key in (scene.acme, scene.acme_new, scene.zen)
    }
    assert len(arms[scene.acme]) == len(arms[scene.zen]) == 1
    assert arms[scene.acme] == arms[scene.acme_new]


@pytest.mark.parametrize("http2", [False, True])
def test_a_reply_under_way_ends_with_its_key(scene: Scene, http2: bool) -> None:
    """When a key is removed, a reply that has begun for it breaks off; those of other keys go on."""
    going = scene.keys.add("going", f"going-{http2}")
    scene.served.use(scene.rules())
    with (
        httpx.Client(timeout=120, http1=not http2, http2=http2) as client,
        client.stream("POST", f"{scene.url}/v2/models/endless/infer", json={}, headers=bearer(going)) as reply,
        client.stream("POST", f"{scene.url}/v2/models/endless/infer", json={}, headers=bearer(scene.zen)) as other,
    ):
        pieces, others = reply.iter_bytes(), other.iter_bytes()
        assert (next(pieces), next(others)) == (b"{", b"{")
        scene.keys.remove(f"going-{http2}")
        scene.served.use(scene.rules())
        with pytest.raises(httpx.RemoteProtocolError):
            next(pieces)
        keys = {entry.principal.key for entry in scene.served.progress() if entry.principal is not None}
        assert keys == {scene.keys.ids["zen"]}


def test_a_stream_ends_with_its_key(scene: Scene) -> None:
    """A ModelStreamInfer call ends with UNAUTHENTICATED when its key is removed."""
    going = scene.keys.add("going", "streaming")
    scene.served.use(scene.rules())
    messages: queue.Queue[bytes | None] = queue.Queue()
    messages.put(b"\x0a\x01g")
    with grpc.insecure_channel(scene.served.address) as channel:
        call = channel.stream_stream("/inference.GRPCInferenceService/ModelStreamInfer")
        replies = call(iter(messages.get, None), metadata=[("x-api-key", going)], timeout=120)
        assert next(replies)
        scene.keys.remove("streaming")
        scene.served.use(scene.rules())
        with pytest.raises(grpc.RpcError) as refused:
            next(replies)
        messages.put(None)
    assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED
    assert "has been removed" in refused.value.details()
