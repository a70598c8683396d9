"""A target of the rules, as requests use it."""

from __future__ import annotations

from collections.abc import Collection
from copy import copy
from typing import TYPE_CHECKING

from gateway.config.experiment_specs import ShadowSpec
from gateway.dataplane.context.fallbacks import Fallbacks
from gateway.dataplane.context.reply_fields import decision_fields, lines_of
from gateway.limits.budget import Budget
from gateway.limits.limit import Limit
from gateway.observability.arm_stats import NUM_BUCKETS
from gateway.observability.arms import Meter
from gateway.observability.metrics import Metrics, RequestSeries, SeriesKey
from gateway.protocol.errors import GatewayError
from gateway.protocol.operations import OF_TEXT, ApiCall, LlmApi, Operation
from gateway.routing.assignment import Split
from gateway.routing.decision import Target
from gateway.upstream.endpoint import Endpoint
from gateway.upstream.engine import Engine
from gateway.wire.http1.head import Field

if TYPE_CHECKING:
    from gateway.hooks.chain import HookChain


class RouteTarget:
    """A target of the rules with its engine, its counters and the fields of its replies.

    An experiment's arm has one target for each bucket of its units as well, copies of `parent` that differ in `meter`
    and have the same `key`. `parent` is None in the target itself: a circle would not be freed with its snapshot.
    """

    __slots__ = (
        "_bucket_targets",
        "_guessed",
        "_metrics",
        "_series",
        "_unmeasured",
        "arm_experiment",
        "arms",
        "bucket",
        "budgets",
        "engine",
        "fallbacks",
        "hedged",
        "hooks",
        "is_limited",
        "is_named",
        "is_plain",
        "is_sticky",
        "key",
        "limits",
        "meter",
        "needs_session",
        "parent",
        "pin_fields",
        "replay",
        "reply_fields",
        "reply_lines",
        "salts_cache",
        "shadow",
        "spec",
        "split",
        "sticky_endpoint",
        "was_admitted",
    )

    def __init__(
        self,
        target: Target,
        engine: Engine,
        metrics: Metrics,
        name_decision: bool,
        limits: tuple[Limit, ...] = (),
        budgets: tuple[Budget, ...] = (),
    ) -> None:
        self.spec = target
        self.is_sticky = target.is_sticky
        self.sticky_endpoint = target.sticky_endpoint
        self.arm_experiment = target.experiment if target.sticky_arm else None  # in which a session keeps its arm
        self.needs_session = target.needs_session
        self.replay = target.replay
        self.arms: dict[str, RouteTarget] = {}  # of the same route, those that may take requests, by what sessions keep
        self.split: Split | None = None  # of its experiment
        self.engine = engine
        self.salts_cache = engine.spec.cache_salt == "tenant"
        self.limits = limits  # that its requests meet
        self.budgets = budgets  # the same
        self.is_limited = bool(limits or budgets or engine.overload is not None)
        self.was_admitted = False  # whether limits have counted its requests, as those of another engine
        self.shadow: ShadowSpec | None = None  # of its route
        self.hooks: HookChain | None = None  # the same
        self.fallbacks: Fallbacks[RouteTarget] | None = None
        self.is_plain = engine.hedging is None  # and it has neither fallbacks nor a shadow
        self.hedged: dict[object, RouteTarget] = {}  # the same of requests that were hedged: see `hedged_targets`
        self.is_named = name_decision  # clients may read the names of routes, engines and endpoints
        self.reply_fields = decision_fields(target) if name_decision else []
        self.reply_lines = lines_of(self.reply_fields)
        self.pin_fields: list[Field] = []  # of the reply to one request, which tell its client its arm: see `pinned`
        self._metrics = metrics
        self._series: dict[Endpoint | None, RequestSeries] = {}
        self.key = object()
        self.parent: RouteTarget | None = None
        self.bucket: int | None = None
        self.meter: Meter | None = None  # where an experiment measures it
        if target.experiment is not None and target.arm is not None:
            self.meter = metrics.arms.meter(target.experiment, target.arm, is_forced=target.is_forced)
        self._bucket_targets: list[RouteTarget] = []
        self._unmeasured: RouteTarget | None = None
        self._guessed: RouteTarget | None = None

    def passes(self, call: ApiCall) -> bool:
        """Whether all requests of this kind go to the engine unchanged, by REST, and nowhere else."""
        return self.fallbacks is None and not self.is_hedged(call) and self.passes_at_first(call)

    def passes_at_first(self, call: ApiCall) -> bool:
        """Whether they go there unchanged before a fallback or a hedge gets them."""
        engine, spec = self.engine, self.engine.spec
        if not engine.speaks_rest or not engine.passes(call) or self.spec.resume:
            return False
        if self.hooks is not None:
            return False
        if self.spec.history is not None and call.api in OF_TEXT:
            return False
        traits = spec.protocol.traits
        if traits.has_dialects and spec.always_stream and call.api is not LlmApi.EMBEDDINGS:
            return False
        return traits.takes_binary_tensors

    def is_hedged(self, call: ApiCall) -> bool:
        return self.engine.hedging is not None and call.operation is Operation.INFER

    def client_error(self, error: GatewayError, endpoint: str = "") -> GatewayError:
        """An error as clients get it: with the route, the engine and the endpoint, or without any name."""
        spec = self.spec
        if not self.is_named:
            return error.without_names(spec.engine)
        where = f", endpoint {endpoint}" if endpoint else ""
        return error.at(f" (route '{spec.route}', engine '{spec.engine}'{where})")

    def nameless(self, error: GatewayError) -> GatewayError:
        """The same error, without names where clients get none."""
        return error if self.is_named else error.without_names(self.spec.engine)

    def to(self, target: Target, engine: Engine) -> RouteTarget:
        """A target of the same route that its hooks choose."""
        made = RouteTarget(target, engine, self._metrics, bool(self.reply_fields), self.limits, self.budgets)
        made.shadow = self.shadow
        made.is_plain = made.is_plain and self.shadow is None
        return made

    @property
    def origin(self) -> RouteTarget:
        """The target of the route that this one is, or is a copy of."""
        return self if self.parent is None else self.parent

    def forget_others(self) -> None:
        """Leave the other targets of the experiment, which are in a circle with this one: its rules are replaced, and
        no request uses them any more."""
        self.arms.clear()
        self._bucket_targets.clear()
        self._unmeasured = self._guessed = None
        self.hedged.clear()
        if self.hooks is not None:
            self.hooks.rerouted.clear()

    def for_bucket(self, bucket: int | None) -> RouteTarget:
        """The same for requests of the units in this bucket; None: for those of no unit."""
        origin = self.origin
        return origin if bucket is None or origin.meter is None else origin.bucket_targets()[bucket]

    def bucket_targets(self) -> list[RouteTarget]:
        """Those of all buckets, built once; none without a meter."""
        origin = self.origin
        if not origin._bucket_targets and origin.meter is not None:
            for bucket in range(NUM_BUCKETS):
                route_target = copy(origin)
                route_target.parent = origin
                route_target.bucket = bucket
                route_target.meter = origin.meter.of_bucket(bucket)
                origin._bucket_targets.append(route_target)
        return origin._bucket_targets

    @property
    def unmeasured(self) -> RouteTarget:
        """The same for requests that another handler measures."""
        if self.pin_fields:
            return self.origin.unmeasured.pinned(self.pin_fields)
        origin = self.origin
        if origin.meter is None:
            return origin
        if origin._unmeasured is None:
            origin._unmeasured = copy(origin)
            origin._unmeasured.parent = origin
            origin._unmeasured.meter = None
        return origin._unmeasured

    @property
    def guessed(self) -> RouteTarget:
        """The same for requests of sessions whose arm is a guess: they are counted apart."""
        origin, target = self.origin, self.spec
        if origin.meter is None or target.experiment is None or target.arm is None:
            return origin
        if origin._guessed is None:
            origin._guessed = copy(origin)
            origin._guessed.parent = origin
            origin._guessed.meter = self._metrics.arms.guessed(target.experiment, target.arm)
        return origin._guessed

    def pinned(self, fields: list[Field]) -> RouteTarget:
        """The same for one request, whose reply has these fields, too."""
        route_target = copy(self)
        route_target.parent = self.origin
        route_target.pin_fields = fields
        route_target.reply_fields = self.reply_fields + fields
        route_target.reply_lines = self.reply_lines + lines_of(fields)
        return route_target

    def forget_series(self, endpoints: Collection[Endpoint]) -> None:
        for endpoint in endpoints:
            self._series.pop(endpoint, None)

    def series(self, endpoint: Endpoint | None) -> RequestSeries:
        """The counters of requests that went this way; endpoint None: of those that reached none."""
        found = self._series.get(endpoint)
        if found is None:
            target = self.spec
            key = SeriesKey(target.route, target.arm or "", target.engine, endpoint.url if endpoint else "")
            found = self._series[endpoint] = self._metrics.series(key)
        return found
