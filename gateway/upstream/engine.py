"""An engine in one worker: its endpoints, and the choice among them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from operator import attrgetter
from time import monotonic
from types import MappingProxyType

from gateway.config.engine_specs import EndpointSpec, EngineSpec, RetrySpec
from gateway.protocol.advertised_models import AdvertisedModels, ModelName
from gateway.protocol.engine_load import Load, Readiness
from gateway.protocol.errors import ErrorKind, GatewayError
from gateway.protocol.operations import ApiCall, LlmApi
from gateway.upstream.adapter_affinity import with_adapter
from gateway.upstream.balancing import BY_WEIGHT, EVENLY, POLICIES, Draw, by_session, shares
from gateway.upstream.endpoint import NOT_READY, Endpoint
from gateway.upstream.engine_admission import EngineAdmission
from gateway.upstream.hedging_policy import HedgingPolicy
from gateway.upstream.locality import Levels, levels_of
from gateway.upstream.model_map import ModelMap
from gateway.upstream.prefix_index import PrefixIndex
from gateway.upstream.slow_start import observe_ready, ramped
from gateway.upstream.tls import endpoint_tls, engines_tls
from gateway.upstream.tracked_prefix_index import TrackedPrefixIndex

# Bound once: an attribute of an Enum costs a call in Python 3.11, and each request reads it.
_DOWN = Readiness.DOWN
_WINDOW_SECONDS = 10.0
# How often in a second something is done that clients cause, and that costs much.
_MOST_IN_A_SECOND = {"lists": 1, "indexes": 1, "near names": 20}
# Requests that leave endpoints without their model, in ten seconds: clients that invent names take no other's retries.
_MOVES = RetrySpec(budget=0.0, budget_floor=100)
# What the gateway adds to each request itself, unless the engine declares it.
_GATEWAY_FIELDS = frozenset({b"x-forwarded-for", b"x-forwarded-proto", b"x-request-id"})

Key = tuple[str, str]  # engine name, endpoint url


class RetryBudget:
    """Allows a share of the requests of the last ten seconds, and a few in any case.

    The counts of the past window fade as the present one fills. The first `take` after ten seconds ends a window; where
    that is later, its share of ten seconds becomes the past one.
    """

    __slots__ = ("_past_requests", "_past_retries", "_retries", "_spec", "_window_start", "requests")

    def __init__(self, spec: RetrySpec, now: float) -> None:
        self._spec = spec
        self._window_start = now
        self.requests = 0.0  # the hot path adds one for each request
        self._retries = 0.0
        self._past_requests = 0.0
        self._past_retries = 0.0

    def take(self, now: float) -> bool:
        """Whether one more retry is allowed now; counts it where it is."""
        elapsed = now - self._window_start
        if elapsed >= _WINDOW_SECONDS:
            self._past_requests = self.requests * _WINDOW_SECONDS / elapsed
            self._past_retries = self._retries * max(0.0, 2 - elapsed / _WINDOW_SECONDS)  # all were in its first ten
            self.requests = self._retries = 0.0
            self._window_start = now
            elapsed = 0.0
        fading = 1 - elapsed / _WINDOW_SECONDS
        requests = self.requests + self._past_requests * fading
        retries = self._retries + self._past_retries * fading
        if retries >= self._spec.budget_floor + self._spec.budget * requests:
            return False
        self._retries += 1
        return True


class Engine:
    """The endpoints of one engine; `by_session` chooses a session's. `extra_fields` are added to each request;
    `prefixes` indexes the endpoints' prompts, None where it does not balance by them. `by_model` has the endpoints of
    each model, None while all endpoints serve the same; `levels` which endpoints come first, None while none does.
    `knows_adapters`: endpoints report those that they have loaded. `is_plain`: neither prompt nor model decides.
    `keeps_bodies`: an inference may be sent again though an endpoint has got it."""

    __slots__ = (
        "_apis",
        "_base_path",
        "_by_url",
        "_choose",
        "_declared",
        "_done_at",
        "_draw",
        "_models",
        "_shares",
        "_starting",
        "_tls",
        "_weightless",
        "_write_target",
        "budget",
        "by_model",
        "by_session",
        "endpoints",
        "extra_fields",
        "extra_lines",
        "extra_names",
        "hedging",
        "is_plain",
        "keeps_bodies",
        "knows_adapters",
        "levels",
        "moves",
        "name",
        "overload",
        "overrides_gateway_fields",
        "prefixes",
        "speaks_grpc",
        "speaks_rest",
        "spec",
    )

    def __init__(
        self,
        spec: EngineSpec,
        previous: Mapping[str, Endpoint] = MappingProxyType({}),
        prefixes: PrefixIndex | None = None,
    ) -> None:
        """`previous` are the endpoints of this engine in the last snapshot, by URL, and `prefixes` its index: what
        still fits is reused."""
        self.name = spec.name
        self.spec = spec
        traits = spec.protocol.traits
        self._apis = frozenset(map(LlmApi, spec.dialects)) if traits.passes is None else traits.passes
        self._write_target = traits.write_target
        self._base_path = spec.base_path.encode("ascii")
        self.speaks_rest = spec.speaks_rest
        # Of V2's services: others have their own
        self.speaks_grpc = spec.protocol.is_v2 and spec.speaks_grpc
        self.budget = RetryBudget(spec.retry, monotonic())
        self.moves = RetryBudget(_MOVES, monotonic())
        self.overload: EngineAdmission | None = None  # where it has `overload:`
        self.hedging: HedgingPolicy | None = None  # where it has `hedging:`
        self.extra_fields = extra_fields(spec)
        self.extra_lines = b"".join(b"%b: %b\r\n" % field for field in self.extra_fields)
        # Fields of clients that the engine does not receive, since it declares them or they are not for it
        self.extra_names = frozenset({*(name for name, _ in self.extra_fields), *stripped_names(spec)})
        self.overrides_gateway_fields = not self.extra_names.isdisjoint(_GATEWAY_FIELDS)
        # So that endpoints which are found later do not read files
        self._tls = engines_tls([spec]) if spec.sources else []
        self.prefixes: PrefixIndex | None = None
        if spec.balance.traits.by_prompt:
            if prefixes is None or prefixes.spec != spec.prefix:
                prefixes = (PrefixIndex if spec.prefix.events is None else TrackedPrefixIndex)(spec.prefix)
            self.prefixes = prefixes
        self._done_at: dict[str, tuple[float, int]] = {}  # since when, and how often since
        self._starting: dict[Endpoint, float] = {}  # of an engine that requests wait for: until when
        self.by_model: ModelMap | None = None
        self.knows_adapters = any(each.load is not None and each.load.adapters for each in previous.values())
        self._use_endpoints(spec.endpoints, previous)

    def __repr__(self) -> str:
        available = sum(
            endpoint.condition is not Readiness.DOWN and endpoint.breaker.is_closed for endpoint in self.endpoints
        )
        in_flight = sum(endpoint.in_flight for endpoint in self.endpoints)
        return f"<Engine {self.name}: {len(self.endpoints)} endpoints, {available} available, {in_flight} in flight>"

    def set_endpoints(self, specs: Sequence[EndpointSpec]) -> list[Endpoint]:
        """Use these endpoints, of which those that it has stay; returns those that have left."""
        before = self._by_url
        self._use_endpoints(specs, before)
        return [endpoint for url, endpoint in before.items() if self._by_url.get(url) is not endpoint]

    def follow(self, successor: Engine) -> None:
        """Use the endpoints of the engine that has this name in later rules, for requests of the earlier ones that wait
        for an endpoint."""
        if _kind(self.spec) == _kind(successor.spec):
            self._use_endpoints(successor._declared, successor._by_url, successor.spec)

    def _use_endpoints(
        self, specs: Sequence[EndpointSpec], previous: Mapping[str, Endpoint], spec: EngineSpec | None = None
    ) -> None:
        """`spec` declares the endpoints, where it is not this engine's own."""
        self._declared = specs
        listed = {endpoint.url: endpoint for endpoint in specs}  # one listed twice is one endpoint
        endpoints = [_endpoint(spec or self.spec, endpoint, previous.get(url)) for url, endpoint in listed.items()]
        weights = self._shares = shares(list(listed.values()))
        for endpoint in endpoints:
            endpoint.weight = endpoint.share = weights[endpoint.url] if weights is not None else 1.0
        self.endpoints = endpoints
        self._by_url = {endpoint.url: endpoint for endpoint in endpoints}
        self._starting = {each: until for each, until in self._starting.items() if each in endpoints}
        self._weightless = {url for url, endpoint in listed.items() if not endpoint.weight}
        self.levels: Levels | None = levels_of(self.spec.locality, endpoints, listed.values())
        draw = EVENLY if weights is None else BY_WEIGHT
        self._use_draw(draw)
        self.by_session = by_session(draw)
        if self.prefixes is not None:
            self.prefixes.keep(listed)
            self.prefixes.weights = weights
        self._models = ModelMap(endpoints, self.spec.models)
        self._use_models()
        if self.spec.slow_start:
            self.ramp(monotonic())

    def _use_draw(self, draw: Draw) -> None:
        self._draw = draw
        self._choose = POLICIES[self.spec.balance](draw)

    def ramp(self, now: float) -> None:
        """Bring the weights up to date: of an engine with `slow_start`, about once a second."""
        observe_ready(self.spec, self.endpoints, now)
        weights = ramped(self.spec, self.endpoints, self._shares, now)
        for endpoint in self.endpoints:
            endpoint.weight = weights[endpoint.url] if weights is not None else 1.0
        draw = EVENLY if weights is None else BY_WEIGHT
        if draw is not self._draw:
            self._use_draw(draw)

    def passes(self, call: ApiCall) -> bool:
        """Whether the engine understands the request as the client wrote it; else it is translated, or refused."""
        return call.api in self._apis

    def target(self, call: ApiCall, target: bytes, model: str | None) -> bytes:
        """The path and query at the engine of a request that passes.

        `target` is the client's own; `model` is the model's name at the engine, None where it is the same.
        """
        return target if self._write_target is None else self._write_target(call, target, model, self._base_path)

    @property
    def is_ready(self) -> bool:
        """Whether some endpoint is ready; without probes, one whose breaker is closed. An engine that requests start is
        ready for them."""
        if self.spec.activator is not None and self.spec.wait_for_endpoint:
            return True
        if not self.spec.health.interval:
            return any(endpoint.breaker.is_closed for endpoint in self.endpoints)
        return any(endpoint.condition is Readiness.READY for endpoint in self.endpoints)

    # Models

    @property
    def models(self) -> frozenset[str]:
        """The names that its endpoints list."""
        return self._models.names

    @property
    def lists_models(self) -> bool:
        """Whether the lists of all endpoints are known."""
        return self._models.is_complete

    @property
    def learns_models(self) -> bool:
        """Whether replies show which endpoints lack a model."""
        return len(self.endpoints) > 1 and self.spec.models.remember > 0

    def serving(self, model: ModelName | None, now: float) -> Sequence[Endpoint]:
        """The endpoints for a model by its name here; all where that does not matter."""
        by_model = self.by_model
        return self.endpoints if by_model is None or model is None else by_model.serving(model, now)

    def lists_changed(self, endpoints: Collection[Endpoint]) -> None:
        """These endpoints have other lists of models."""
        for endpoint in endpoints:
            self._models.forget_lacks(endpoint)
        self._models.lists_changed()
        self._use_models()

    def learn_lack(self, model: ModelName, endpoint: Endpoint, now: float) -> bool:
        """An endpoint has refused a model; whether that is news."""
        if not self.learns_models or self._models.lacks(model, endpoint, now):
            return False
        self._models.learn(model, endpoint, now)
        self._use_models()
        return True

    def observe_load(self, endpoint: Endpoint, load: Load | None) -> None:
        """Take over an endpoint's report."""
        endpoint.observe_load(load)
        if load is not None and load.adapters and not self.knows_adapters:
            self.knows_adapters = True
            self._use_models()

    def sweep(self, now: float) -> None:
        """Forget old refusals, and use endpoints that have not become ready in time; called about once a second."""
        for endpoint, until in list(self._starting.items()):
            if until <= now:
                del self._starting[endpoint]
                endpoint.condition = Readiness.UNREADY
        if self.by_model is not None:
            self.by_model.forget_old(now)
            self._use_models()

    def is_due(self, what: str, now: float) -> bool:
        """Whether something is done for a request: lists of models are read again, also for clients that query V2's
        repository index, or near names looked for; others have had it done too lately, if not."""
        since, times = self._done_at.get(what, (now - 1.0, 0))
        if now - since >= 1.0:
            since, times = now, 0
        if times >= _MOST_IN_A_SECOND[what]:
            return False
        self._done_at[what] = since, times + 1
        return True

    def no_endpoint(self, model: ModelName | None, now: float) -> GatewayError:
        """Why `choose` finds none."""
        if not self.endpoints:  # those of its sources: there may be some later
            return GatewayError(ErrorKind.NO_HEALTHY_ENDPOINT, "the engine has no endpoint at the moment")
        served = self.serving(model, now)
        if model is not None and not served:
            return GatewayError(ErrorKind.NOT_FOUND, f"no endpoint serves model '{model[0]}'")
        if model is not None and len(served) < len(self.endpoints):
            text = f"no endpoint that serves model '{model[0]}' is healthy"
            return GatewayError(ErrorKind.NO_HEALTHY_ENDPOINT, text)
        return GatewayError(ErrorKind.NO_HEALTHY_ENDPOINT, "no endpoint is healthy")

    def _use_models(self) -> None:
        self.by_model = self._models if self._models.is_needed else None
        self.is_plain = self.by_model is None and self.prefixes is None and not self.knows_adapters
        # Where all endpoints list their models, refusals are too rare to hold large tensors for
        may_learn = self.learns_models and not self._models.is_complete
        self.keeps_bodies = self.spec.retry.idempotent == "infer" or may_learn

    # The choice

    def choose(
        self,
        session: str | None,
        now: float,
        tried: Collection[Endpoint] = (),
        prompt: bytes | memoryview | None = None,
        model: ModelName | None = None,
    ) -> Endpoint | None:
        """An endpoint for the next attempt; None where the probes find all (not yet tried) down that serve the `model`,
        by its name here. `prompt` is for `balance: prefix`: any bytes that begin alike where prompts do.

        Drained endpoints serve only where no other is ready and does not fail; those that are not ready only where none
        is left. Where all breakers are open, they are ignored: a failing endpoint is better than an outage that the
        gateway causes.
        """
        endpoints = self.endpoints
        if len(endpoints) == 1 and not tried and model is None:
            only = endpoints[0]
            return only if only.condition is not _DOWN else None
        able = self.able(now, tried, model)
        if not able:
            return None
        if self.levels is not None:
            able = self.levels.choose(able, self.serving(model, now), session)
        if self.overload is not None and session is None:  # a session stays where it is
            able = self.overload.with_room(able)
        if self.knows_adapters and model is not None and (session is None or not self.spec.balance.traits.by_session):
            able = with_adapter(able, model[0], self.spec.affinity)
        if prompt and self.prefixes is not None:
            return self.prefixes.choose(able, session, prompt, now)
        return self._choose(able, session)

    def able(self, now: float, tried: Collection[Endpoint] = (), model: ModelName | None = None) -> list[Endpoint]:
        """The endpoints of all levels that may be chosen; none where all are down."""
        endpoints: Sequence[Endpoint] = self.endpoints
        if model is not None and self.by_model is not None:
            endpoints = self.by_model.serving(model, now)
        ready = [endpoint for endpoint in endpoints if endpoint.condition not in NOT_READY and endpoint not in tried]
        left = [endpoint for endpoint in ready if not endpoint.is_draining] or ready
        if not left:
            unready = Readiness.UNREADY
            left = [endpoint for endpoint in endpoints if endpoint.condition is unready and endpoint not in tried]
        allowed = _allowed(left, now)
        if not allowed and len(left) < len(ready):
            allowed = _allowed(ready, now)
        return allowed or left

    def able_for_session(
        self, session: str, now: float, tried: Collection[Endpoint] = (), model: ModelName | None = None
    ) -> list[Endpoint]:
        """Those of a session's level."""
        able = self.able(now, tried, model)
        if self.levels is not None and able:
            return self.levels.choose(able, self.serving(model, now), session)
        return able

    def is_able(self, endpoint: Endpoint, now: float, tried: Collection[Endpoint] = ()) -> bool:
        """Whether one of its endpoints is ready, not drained, and not failing."""
        if not endpoint.takes_new or endpoint in tried:
            return False
        return endpoint.breaker.is_spotless or endpoint.breaker.allows(now)

    def endpoint(self, url: str) -> Endpoint | None:
        return self._by_url.get(url)

    def set_health(self, health: Mapping[Key, Readiness], models: Mapping[Key, AdvertisedModels]) -> None:
        """Take over the probes' findings, by engine and URL; endpoints without one become unknown."""
        now = monotonic()
        for endpoint in self.endpoints:
            key = self.name, endpoint.url
            condition = health.get(key)
            if condition is Readiness.DOWN and endpoint.condition is not condition:
                endpoint.renew_connections()  # what is behind its address may be another server when it is back
            endpoint.models = models.get(key)
            self.observe(endpoint, condition, now)
        self.lists_changed(self.endpoints)

    def observe(self, endpoint: Endpoint, condition: Readiness | None, now: float) -> None:
        """Take over a probe's verdict. Where requests wait for an endpoint, one that was down and answers, but is not
        ready, still starts: it stays down until it is ready, or has a model of V2 that is, for as long as they wait."""
        if condition is Readiness.UNREADY and endpoint.condition is Readiness.DOWN and self.spec.wait_for_endpoint:
            until = self._starting.setdefault(endpoint, now + self.spec.wait_for_endpoint)
            serves = self.spec.protocol.is_v2 and endpoint.models is not None and endpoint.models.names
            if now < until and not serves:
                return
        self._starting.pop(endpoint, None)
        endpoint.condition = condition

    def set_drained(self, drained: Collection[Key]) -> None:
        """These endpoints get no new work; nor do those of weight 0. All others do."""
        for endpoint in self.endpoints:
            endpoint.is_draining = endpoint.url in self._weightless or (self.name, endpoint.url) in drained

    def close_idle_connections(self) -> None:
        for endpoint in self.endpoints:
            endpoint.close_idle_connections()


# What requests were prepared for
_kind = attrgetter("protocol", "speaks_rest", "speaks_grpc")


def _allowed(endpoints: list[Endpoint], now: float) -> list[Endpoint]:
    """Those whose breakers let a request pass."""
    return [endpoint for endpoint in endpoints if endpoint.breaker.is_spotless or endpoint.breaker.allows(now)]


def _endpoint(engine: EngineSpec, spec: EndpointSpec, previous: Endpoint | None) -> Endpoint:
    if previous is not None and previous.fits(engine, spec):
        return previous
    return Endpoint(engine, spec, endpoint_tls(engine.tls, spec.url))


def extra_fields(spec: EngineSpec) -> list[tuple[bytes, bytes]]:
    """The fields that an engine's declaration adds to each request, names in lower case."""
    fields = {name: value for name, value in spec.headers.items() if value is not None}
    if spec.api_key:
        fields["authorization"] = f"Bearer {spec.api_key}"
    if spec.load.source == "orca":
        fields.setdefault("endpoint-load-metrics-format", "text")
    return [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in fields.items()]


def stripped_names(spec: EngineSpec) -> list[bytes]:
    """The fields that an engine's declaration keeps from it, names in lower case."""
    names = [*spec.strip, *(name for name, value in spec.headers.items() if value is None)]
    return [name.lower().encode("latin-1") for name in names]
