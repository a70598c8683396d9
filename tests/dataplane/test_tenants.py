"""Tenants name the same sessions, sequences and requests, and have nothing of each other's."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest
from tritonclient.grpc import service_pb2

from gateway.protocol.llm.cache_salt import tenant_salt
from gateway.protocol.sequence import Sequence, TenantSession, is_sequence, name_of, record_name
from tests.dataplane.authenticated import INFER, GrpcEngine, Keys, RestEngine, Served, bearer, engines, infer

RULES = """
version: 1
auth: {{keys: keys.yaml, required: {required}}}
engines:
  two: {{endpoints: ["http://{rest}", "http://{other}"], balance: session}}
  one: {{endpoints: ["http://{rest}"]}}
  by-grpc: {{endpoints: ["grpc://{grpc}"]}}
  sticky-grpc: {{endpoints: ["grpc://{grpc}"], balance: session}}
  llm: {{protocol: openai, endpoints: ["http://{rest}"]}}
  salted: {{protocol: openai, endpoints: ["http://{rest}"], dialects: [chat, responses], cache_salt: tenant}}
routes:
  - {{name: moved, match: {{model: moved}}, engine: two}}
  - {{name: of-requests, match: {{model: rated}}, experiment: of-requests}}
  - {{name: of-sessions, match: {{model: kept}}, experiment: of-sessions}}
  - {{name: of-calls, match: {{model: g}}, experiment: of-calls}}
  - {{name: of-chats, match: {{model: chat}}, experiment: of-chats}}
  - {{name: kept-grpc, match: {{model: kept-grpc}}, engine: sticky-grpc}}
  - {{name: salted, match: {{model: salted}}, engine: salted}}
  - {{name: renamed, match: {{model: alias}}, engine: salted, model: salted, resume: true}}
  - {{name: held, match: {{model: held}}, engine: llm, session: {{history: engine}}}}
  - {{name: limited, match: {{model: limited}}, engine: one}}
experiments:
  of-requests: {{unit: request, arms: [{{name: a, engine: one, weight: 1}}, {{name: b, engine: one, weight: 1}}]}}
  of-sessions: {{unit: session, arms: [{{name: a, engine: one, weight: 1}}, {{name: b, engine: one, weight: 1}}]}}
  of-calls: {{unit: request, arms: [{{name: a, engine: by-grpc, weight: 1}}, {{name: b, engine: by-grpc, weight: 1}}]}}
  of-chats: {{unit: request, arms: [{{name: a, engine: llm, weight: 1}}, {{name: b, engine: llm, weight: 1}}]}}
limits:
  - {{name: few, routes: limited, per: [session], requests_per_second: 0.001, burst: 1}}
"""


class Scene:
    """The engines and the data plane of the tests here, with the keys of two tenants."""

    def __init__(self, rest: RestEngine, by_grpc: GrpcEngine, other: RestEngine, folder: Path) -> None:
        self.rest = rest
        self._addresses = {"rest": rest.address, "grpc": by_grpc.address, "other": other.address}
        self.engines = {f"http://{engine.address}": engine for engine in (rest, other)}
        keys = Keys(folder)
        self.acme, self.zen = bearer(keys.add("acme")), bearer(keys.add("zen"))
        self.served = Served(self.rules(), folder)

    def rules(self, required: str = "true") -> str:
        return RULES.format(required=required, **self._addresses)

    def rate(self, headers: dict[str, str], **rating: Any) -> httpx.Response:
        return httpx.post(f"{self.served.url}/feedback", json={"value": 1, **rating}, headers=headers, timeout=120)

    def ratings(self, experiment: str) -> float:
        """The sum of an experiment's ratings."""
        arms = self.served.plane.metrics.arms
        rated = [meter.counts.feedback.get("rating") for meter in (arms.meter(experiment, arm) for arm in "ab")]
        return sum(sum(each.total) for each in rated if each is not None)


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    with engines() as (rest, by_grpc):
        other = RestEngine()
        it = Scene(rest, by_grpc, other, tmp_path_factory.mktemp("tenants"))
        yield it
        it.served.stop()
        other.stop()


def same_answer(one: httpx.Response, other: httpx.Response, id: str, unknown: str) -> bool:
    return (one.status_code, one.text.replace(id, unknown)) == (other.status_code, other.text)


def test_names_of_records_differ_between_tenants() -> None:
    """Sessions and sequences of different tenants have different records, whatever the tenants are called."""
    names = [record_name("s", tenant) for tenant in (None, "", "acme", "zen", "a\1s", "a\0s", "x" * 1000)]
    assert len(set(names)) == len(names)
    assert record_name("b\1s", "a") != record_name("s", "a\1b")
    assert not any(is_sequence(name) for name in names)
    assert Sequence(TenantSession("7", "acme"), "m").name != Sequence(TenantSession("7", "zen"), "m").name
    assert name_of(Sequence("7", "m")) == "m\x007"


def test_no_caller_names_the_id_of_anothers_conversation_at_an_engine(scene: Scene) -> None:
    """The id at an engine that holds conversations is never a caller's own text: an anonymous caller does not reach a
    tenant's conversation by a session that is called like its id, nor does one behind a proxy that
    names tenants."""

    def held(session: str, headers: dict[str, str]) -> str:
        chat = {"model": "held", "messages": [{"role": "user", "content": "hi"}]}
        url = f"{scene.served.url}/v1/chat/completions"
        assert httpx.post(url, json=chat, headers={**headers, "x-session-id": session}, timeout=120).is_success
        return scene.rest.received[-1]["x-session-id"]

    try:
        scene.served.use(scene.rules("false"))
        of_acme = held("support-1", scene.acme)
        others = {held("support-1", {}), held("support-1", scene.zen), held(of_acme, {}), held(of_acme, scene.zen)}
        ids = others | {of_acme}
        assert (len(ids), "support-1" in ids) == (5, False)
        assert held("support-1", scene.acme) == of_acme
        unverified = scene.rules().replace("auth: {keys: keys.yaml, required: true}", "identity: {trust_header: true}")
        scene.served.use(unverified.replace(", cache_salt: tenant", ""))
        assert held("support-1", {}) == "support-1"
        assert of_acme not in (held(of_acme, {}), held(of_acme.upper(), {}).lower())
    finally:
        scene.served.use(scene.rules())


def ask_rest(scene: Scene, id: str) -> None:
    assert infer(scene.served, {**scene.acme, "x-request-id": id}, "rated").status_code == 200


def ask_chat(scene: Scene, id: str) -> None:
    chat = {"model": "chat", "messages": [{"role": "user", "content": "hi"}]}
    headers = {**scene.acme, "x-request-id": id}
    assert httpx.post(f"{scene.served.url}/v1/chat/completions", json=chat, headers=headers, timeout=120).is_success


def ask_grpc(scene: Scene, id: str) -> None:
    with grpc.insecure_channel(scene.served.address) as channel:
        call = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
        message = service_pb2.ModelInferRequest(model_name="g").SerializeToString()
        call(message, metadata=[*scene.acme.items(), ("x-request-id", id)], timeout=120)


def ask_stream(scene: Scene, id: str) -> None:
    with grpc.insecure_channel(scene.served.address) as channel:
        call = channel.stream_stream("/inference.GRPCInferenceService/ModelStreamInfer")
        message = service_pb2.ModelInferRequest(model_name="g").SerializeToString()
        assert len(list(call(iter([message]), metadata=[*scene.acme.items(), ("x-request-id", id)], timeout=120))) == 1


def ask_rest_for_grpc(scene: Scene, id: str) -> None:
    assert infer(scene.served, {**scene.acme, "x-request-id": id}, "g").status_code == 200


@pytest.mark.parametrize(
    "ask, experiment",
    [
        (ask_rest, "of-requests"),
        (ask_chat, "of-chats"),
        (ask_grpc, "of-calls"),
        (ask_stream, "of-calls"),
        (ask_rest_for_grpc, "of-calls"),
    ],
)
def test_a_tenant_rates_its_own_requests(scene: Scene, ask: Any, experiment: str) -> None:
    """The rating of another tenant's request is answered as one of an unknown request, and counts nothing."""
    id = f"r-{ask.__name__}"
    ask(scene, id)
    before = scene.ratings(experiment)
    foreign, unknown = scene.rate(scene.zen, request_id=id), scene.rate(scene.zen, request_id="never")
    assert unknown.status_code == 404 and same_answer(foreign, unknown, id, "never")
    assert scene.ratings(experiment) == before
    assert scene.rate(scene.acme, request_id=id).status_code == 200
    assert scene.ratings(experiment) == before + 1


def test_tenants_with_equal_request_ids_rate_their_own(scene: Scene) -> None:
    """Request ids of clients may be equal: each tenant's rating counts once, for its own request."""
    before = scene.ratings("of-requests")
    for headers in (scene.acme, scene.zen):
        assert infer(scene.served, {**headers, "x-request-id": "equal"}, "rated").status_code == 200
        for _ in range(2):
            assert scene.rate(headers, request_id="equal").status_code == 200
    assert scene.ratings("of-requests") == before + 2


def test_a_tenant_rates_its_own_sessions(scene: Scene) -> None:
    """With `auth:`, a rating of a session counts once the tenant has had a request in it."""
    assert infer(scene.served, {**scene.acme, "x-session-id": "mine"}, "kept").status_code == 200
    before = scene.ratings("of-sessions")
    foreign, unknown = scene.rate(scene.zen, session="mine"), scene.rate(scene.zen, session="never")
    assert unknown.status_code == 404 and same_answer(foreign, unknown, "mine", "never")
    assert scene.rate(scene.zen, session="mine", experiment="of-sessions").status_code == 404
    assert scene.ratings("of-sessions") == before
    assert scene.rate(scene.acme, session="mine").status_code == 200
    assert scene.rate(scene.acme, session="mine", experiment="of-sessions").status_code == 200
    assert scene.ratings("of-sessions") == before + 2


def test_feedback_needs_a_credential(scene: Scene) -> None:
    """Feedback without a credential is a 401 with `required: true`; else it is of anonymous requests alone."""
    assert scene.rate({}, request_id="r").status_code == 401
    scene.served.use(scene.rules(required="false"))
    try:
        for headers, id in ((scene.acme, "of-acme"), ({}, "of-nobody")):
            assert infer(scene.served, {**headers, "x-request-id": id}, "rated").status_code == 200
        assert scene.rate({}, request_id="of-acme").status_code == 404
        assert scene.rate({}, request_id="of-nobody").status_code == 200
    finally:
        scene.served.use(scene.rules())


def places(scene: Scene, headers: dict[str, str], **more: Any) -> set[str]:
    """The endpoints of a few requests."""
    before = {url: len(engine.received) for url, engine in scene.engines.items()}
    for _ in range(4):
        url = f"{scene.served.url}/v2/models/moved/infer"
        assert httpx.post(url, json={**INFER, **more}, headers=headers, timeout=120).status_code == 200
    return {url for url, engine in scene.engines.items() if len(engine.received) > before[url]}


@pytest.mark.parametrize("by", ["header", "parameter", "sequence"])
def test_a_tenant_has_no_others_place(scene: Scene, by: str) -> None:
    """A session or sequence that is moved stays where it was for other tenants' of the same name."""

    def place(headers: dict[str, str]) -> set[str]:
        if by == "header":
            return places(scene, {**headers, "x-session-id": "s"})
        parameters = {"sequence_id": 7, "sequence_start": True} if by == "sequence" else {"session_id": "s"}
        return places(scene, headers, parameters=parameters)

    (at,) = place(scene.acme)
    (before,) = place(scene.zen)
    other = next(url for url in scene.engines if url != at)
    book = scene.served.plane.affinity.book
    id = "7" if by == "sequence" else "s"
    name = Sequence(TenantSession(id, "acme"), "moved").name if by == "sequence" else record_name(id, "acme")

    def move() -> None:
        known = book.look(name)
        assert known is not None and (by == "sequence" or known.requests)
        book.place(known, "two", other)

    scene.served.run(move)
    assert place(scene.acme) == {other}
    assert place(scene.zen) == {before}
    scene.served.run(lambda: book.end(name))


def test_a_sequence_of_another_tenant_is_none(scene: Scene) -> None:
    """Ending a sequence ends the caller's: another tenant's goes on where it is."""
    start, end = {"sequence_id": 9, "sequence_start": True}, {"sequence_id": 9, "sequence_end": True}
    assert len(places(scene, scene.acme, parameters=start)) == 1
    book = scene.served.plane.affinity.book
    mine = Sequence(TenantSession("9", "acme"), "moved").name
    places(scene, scene.zen, parameters=end)
    assert book.look(mine) is not None
    places(scene, scene.acme, parameters=end)
    known = book.look(mine)
    assert known is None or not known.places


@pytest.mark.parametrize("method", ["ModelInfer", "ModelStreamInfer"])
@pytest.mark.parametrize("by", ["metadata", "parameter", "sequence"])
def test_sessions_of_calls_belong_to_their_tenant(scene: Scene, method: str, by: str) -> None:
    """A session or sequence in a gRPC call has a record of the tenant's own, and none that others name."""
    id = f"{len(method)}1" if by == "sequence" else f"{by}-{method}"
    request = service_pb2.ModelInferRequest(model_name="kept-grpc")
    if by == "parameter":
        request.parameters["session_id"].string_param = id
    elif by == "sequence":
        request.parameters["sequence_id"].int64_param = int(id)
        request.parameters["sequence_start"].bool_param = True
    metadata = [*scene.acme.items(), *([("x-session-id", id)] if by == "metadata" else [])]
    with grpc.insecure_channel(scene.served.address) as channel:
        path = f"/inference.GRPCInferenceService/{method}"
        if method == "ModelInfer":
            channel.unary_unary(path)(request.SerializeToString(), metadata=metadata, timeout=120)
        else:
            assert len(list(channel.stream_stream(path)(iter([request.SerializeToString()]), metadata=metadata))) == 1
    book = scene.served.plane.affinity.book

    def name(session: str) -> str:
        return Sequence(session, "kept-grpc").name if by == "sequence" else name_of(session)

    assert book.look(name(TenantSession(id, "acme"))) is not None
    assert book.look(name(TenantSession(id, "zen"))) is None and book.look(name(id)) is None


def test_limits_by_session_are_each_tenants_own(scene: Scene) -> None:
    """A tenant that uses up the allowance of its session leaves that of another tenant's session."""
    mine, theirs = ({**headers, "x-session-id": "s"} for headers in (scene.acme, scene.zen))
    assert [infer(scene.served, mine, "limited").status_code for _ in range(2)] == [200, 429]
    assert infer(scene.served, theirs, "limited").status_code == 200


PROMPT = [{"role": "user", "content": "hi"}]
CALLS = [
    ("/v1/chat/completions", {"model": "salted", "messages": PROMPT}),
    ("/v1/chat/completions", {"model": "alias", "messages": PROMPT}),
    ("/v1/responses", {"model": "salted", "input": "hi"}),
    ("/v1/messages", {"model": "salted", "messages": PROMPT, "max_tokens": 5}),
    ("/v2/models/salted/generate", {"text_input": "hi"}),
]


@pytest.mark.parametrize("path, body", CALLS)
def test_tenants_share_no_prefix_cache(scene: Scene, path: str, body: dict[str, Any]) -> None:
    """With `cache_salt: tenant` each request for text has its tenant's salt, passed through or translated."""

    def salt(headers: dict[str, str], **more: Any) -> str:
        before = len(scene.rest.bodies)
        httpx.post(f"{scene.served.url}{path}", json={**body, **more}, headers=headers, timeout=120)
        (sent,) = [json.loads(each) for each in scene.rest.bodies[before:]]
        assert "hi" in str(sent)
        return str(sent["cache_salt"])

    mine, theirs = salt(scene.acme), salt(scene.zen)
    assert (mine, theirs) == (tenant_salt("acme"), tenant_salt("zen"))
    if "messages" in path and "chat" not in path:
        return  # they have no field for a salt of the client
    assert salt(scene.zen, cache_salt=mine) not in (mine, theirs)
    assert salt(scene.acme, cache_salt="a") == tenant_salt("acme", "a") != salt(scene.acme, cache_salt="b")


def test_a_salt_is_a_text_that_stands_once(scene: Scene) -> None:
    """A salt that is no text, or stands twice, is refused; one in another case is left out."""
    url = f"{scene.served.url}/v1/chat/completions"
    chat = {"model": "salted", "messages": PROMPT}
    reply = httpx.post(url, json={**chat, "cache_salt": 5}, headers=scene.acme, timeout=120)
    assert reply.status_code == 400 and "'cache_salt' is no text" in reply.text
    for more, status in ((', "cache_salt": "a", "cache_\\u0073alt": "b"', 400), (', "Cache_Salt": "c"', 200)):
        reply = httpx.post(url, content=json.dumps(chat)[:-1] + more + "}", headers=scene.acme, timeout=120)
        assert reply.status_code == status, reply.text
    assert scene.rest.bodies[-1].lower().count(b'"cache_salt"') == 1
    assert json.loads(scene.rest.bodies[-1])["cache_salt"] == tenant_salt("acme")


def test_engines_see_the_ids_of_clients(scene: Scene) -> None:
    """The session goes on to the engine as the client wrote it."""
    headers = {**scene.acme, "x-session-id": "plain"}
    assert infer(scene.served, headers, "moved").status_code == 200
    received = [fields for engine in scene.engines.values() for fields in engine.received]
    assert {fields["x-session-id"] for fields in received if "plain" in fields.get("x-session-id", "")} == {"plain"}
