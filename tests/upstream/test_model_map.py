"""Which endpoints serve a model: by their lists, and by what replies have shown."""

from __future__ import annotations

import pickle

import pytest

from gateway.config.engine_specs import EndpointSpec, EngineSpec, ModelsSpec
from gateway.protocol.advertised_models import AdvertisedModels, read_index, read_model_list
from gateway.protocol.engine_load import Readiness
from gateway.protocol.errors import ErrorKind
from gateway.upstream.engine import Engine


def engine(*lists: str | None, **options: object) -> Engine:
    """An engine whose endpoints list these models, by words; None: it has no list."""
    urls = tuple(EndpointSpec(f"http://e{number}:80") for number in range(len(lists)))
    it = Engine(EngineSpec("it", urls, models=ModelsSpec(**options)))  # type: ignore[arg-type]
    list_models(it, *lists)
    return it


def list_models(it: Engine, *lists: str | None) -> None:
    for endpoint, names in zip(it.endpoints, lists, strict=True):
        endpoint.models = None if names is None else AdvertisedModels(frozenset(names.split()))
    it.lists_changed(it.endpoints)


def serving(it: Engine, name: str, now: float = 0.0, version: str = "") -> str:
    """The numbers of the endpoints that may get a request."""
    return "".join(str(it.endpoints.index(each)) for each in it.serving((name, version), now))


@pytest.mark.parametrize("lists", [(None,), ("a b",), ("a", "a"), (None, None), ("", "")])
def test_equal_lists_need_no_map(lists: tuple[str | None, ...]) -> None:
    """While all endpoints serve the same models nothing is looked up."""
    it = engine(*lists)
    assert it.by_model is None
    assert it.is_plain


@pytest.mark.parametrize(
    "lists, name, expected",
    [
        (("a", "b"), "a", "0"),
        (("a", "b"), "b", "1"),
        (("a", "b"), "c", "01"),  # no endpoint lists it: any may still serve it
        (("a", "a b", "b"), "b", "12"),
        (("a", None), "a", "01"),  # an endpoint without a list may serve any
        (("a", None), "c", "1"),
        (("llama:latest", "qwen:8b"), "llama", "0"),  # Ollama's default tag
    ],
)
def test_endpoints_of_a_model(lists: tuple[str | None, ...], name: str, expected: str) -> None:
    assert serving(engine(*lists), name) == expected


def test_versions_narrow_the_choice() -> None:
    """A version goes to the endpoints that have it ready; without a version any version will do."""
    it = engine(None, None)
    for endpoint, versions in zip(it.endpoints, ("1", "2"), strict=True):
        endpoint.models = read_index(b'[{"name":"m","version":"%s","state":"READY"}]' % versions.encode())
    it.lists_changed(it.endpoints)
    assert (serving(it, "m"), serving(it, "m", version="1"), serving(it, "m", version="2")) == ("01", "0", "1")
    assert serving(it, "m", version="3") == "01"


def test_a_refusal_is_remembered_for_a_while() -> None:
    """An endpoint that has refused a model gets no request for it until the time is over; then the map goes."""
    it = engine(None, None, remember=5.0)
    first, second = it.endpoints
    assert it.learn_lack(("m", ""), first, 10.0)
    assert not it.learn_lack(("m", ""), first, 11.0)
    assert serving(it, "m", 14.9) == "1"
    assert serving(it, "other", 14.9) == "01"
    assert it.learn_lack(("m", ""), second, 12.0)
    assert serving(it, "m", 13.0) == "01"  # all have refused it: any of them may answer that
    assert serving(it, "m", 17.0) == "01"
    it.sweep(18.0)
    assert it.by_model is None


def test_bodies_are_kept_while_a_refusal_is_likely() -> None:
    """An inference can be sent again, though it is not idempotent, where an endpoint's list is unknown."""
    assert [engine(*lists).keeps_bodies for lists in ((None, None), ("a", None), ("a", "b"), (None,))] == [
        *(True, True, False, False)
    ]


def test_a_refusal_outweighs_an_old_list() -> None:
    """An endpoint that lists a model and refuses it is left for one that does not list it; a new list decides again."""
    it = engine("m", "x")
    assert it.learn_lack(("m", ""), it.endpoints[0], 0.0)
    assert serving(it, "m", 1.0) == "1"
    assert not it.learn_lack(("x", ""), it.endpoints[0], 0.0)  # it is known not to list it
    list_models(it, "m", "m x")
    assert serving(it, "m", 1.0) == "01"


def test_refusals_are_bounded() -> None:
    it = engine(None, None, max_remembered=3)
    for number in range(10):
        it.learn_lack((f"m{number}", ""), it.endpoints[0], 0.0)
    assert sum(serving(it, f"m{number}", 1.0) == "1" for number in range(10)) <= 3


def test_nothing_is_learned_of_a_single_endpoint_or_where_rules_switch_it_off() -> None:
    assert not engine(None).learn_lack(("m", ""), engine(None).endpoints[0], 0.0)
    it = engine(None, None, remember=0.0)
    assert not it.learn_lack(("m", ""), it.endpoints[0], 0.0)


def test_an_unknown_model_is_refused_only_where_all_lists_are_known() -> None:
    """`unknown: refuse` needs the list of each endpoint; a refusal by an endpoint alone is none by the gateway."""
    it = engine("a", "a", unknown="refuse")
    assert serving(it, "b") == ""
    assert it.choose(None, 0.0, model=("b", "")) is None
    assert it.no_endpoint(("b", ""), 0.0).kind is ErrorKind.NOT_FOUND
    assert serving(it, "a") == "01"
    for endpoint in it.endpoints:
        it.learn_lack(("a", ""), endpoint, 0.0)
    assert serving(it, "a", 1.0) == "01"
    assert serving(engine("a", None, unknown="refuse"), "b") == "1"
    assert serving(engine(None, None, unknown="refuse"), "b") == "01"


def test_a_model_whose_endpoints_are_down_does_not_go_to_others() -> None:
    """Health, drains and tried endpoints narrow the endpoints of the model further."""
    it = engine("a", "a", "b")
    first, second, third = it.endpoints
    first.condition = Readiness.DOWN
    assert {it.choose(None, 0.0, model=("a", "")) for _ in range(20)} == {second}
    assert it.choose(None, 0.0, (second,), model=("a", "")) is None
    second.condition = Readiness.DOWN
    assert it.choose(None, 0.0, model=("a", "")) is None
    error = it.no_endpoint(("a", ""), 0.0)
    assert (error.kind, error.message) == (
        ErrorKind.NO_HEALTHY_ENDPOINT,
        "no endpoint that serves model 'a' is healthy",
    )
    assert it.choose(None, 0.0, model=("b", "")) is third
    assert it.choose(None, 0.0) is third


INDEXES = [
    (b'[{"name":"a","version":"1","state":"READY"}]', {"a": {"1"}}),
    (b'[{"name":"a","version":"1","state":"READY"},{"name":"a","version":"2","state":"UNAVAILABLE"}]', {"a": {"1"}}),
    (b'[{"name":"a"},{"name":"b","state":"UNAVAILABLE","reason":"unloaded"}]', {}),  # Triton, not loaded
    (b'[{"name":"a","state":"READY"}]', {"a": None}),
    (b"[]", {}),
    (b'[{"name":5,"state":"READY"},{"state":"READY"}]', {}),
    (b'{"error":"x"}', None),
    (b"[1, null]", None),
    (b"null", None),
    (b"<html>", None),
    (b"", None),
]


@pytest.mark.parametrize("body, expected", INDEXES)
def test_a_repository_index_is_read(body: bytes, expected: dict[str, set[str] | None] | None) -> None:
    """Names and versions that are ready; another shape is no index."""
    found = read_index(body)
    if expected is None:
        assert found is None
    else:
        assert found is not None
        assert {name: found.versions.get(name) for name in found.names} == expected


def test_entries_are_kept_within_bounds() -> None:
    """A model's entry is kept as it is, unless it is too long; a new time of creation is no change."""
    long = "x" * 10_000
    text = b'{"data":[{"id":"a","max_model_len":8,"parent":"b","created":%d,"permission":[{"id":"%d"}]},{"id":"%s"}]}'
    one, other = (read_model_list(text % (number, number, long.encode())) for number in (1, 2))
    assert one is not None
    assert one == other
    assert one.names == {"a", long}
    assert one.entries == {"a": b'{"id":"a","max_model_len":8,"parent":"b","created":1}'}
    assert one != read_model_list(text.replace(b":8", b":9") % (1, 1, long.encode()))
    assert pickle.loads(pickle.dumps(one)) == one


def test_long_names_are_not_remembered() -> None:
    """Clients choose names: of more than 256 characters neither the endpoints nor a refusal take memory."""
    it = engine("a", None)
    long = "x" * 300
    assert (serving(it, long), serving(it, "a", version=long)) == ("1", "01")
    assert it.learn_lack((long, ""), it.endpoints[1], 0.0)
    assert serving(it, long) == "1"
    assert it.learn_lack(("b", ""), it.endpoints[1], 0.0)
    assert serving(it, "b") == "0"
    assert it.by_model is not None
    assert set(it.by_model._by_model) == {("b", "")} and set(it.by_model._lacks) == {("b", "")}
