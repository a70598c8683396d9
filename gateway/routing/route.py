"""One compiled route: its conditions, its targets, and how it chooses among them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from gateway.config.engine_specs import EngineSpec
from gateway.config.specs import IdentitySpec, RouteSpec
from gateway.protocol.operations import INFERENCE_OPERATIONS
from gateway.protocol.principal import Principal
from gateway.protocol.sequence import AnySession, id_of
from gateway.routing.access import access_of
from gateway.routing.assignment import Forced, Forcing, Split
from gateway.routing.decision import Decision, Facts, Target, Undecided
from gateway.routing.matchers import compile_match
from gateway.routing.unit_lookup import LATER, UnitMatch, session_lookup, unit_lookup


class Route:
    """A compiled route of one snapshot; immutable.

    `always` is the decision of a route without conditions: one object.
    """

    def __init__(
        self,
        spec: RouteSpec,
        split: Split | None,
        engines: Mapping[str, EngineSpec],
        identity: IdentitySpec,
        forcing: Forcing,
        *,
        by_tenant: bool = False,
    ) -> None:
        """`by_tenant`: each tenant has its own sessions."""
        match = compile_match(spec.match, identity.tenant_header)
        self.name = spec.name
        self.model = match.model
        self.head = match.head
        self.body = match.body
        self.split = split
        targets = _targets(spec, split, forcing.is_open)
        balances = {engines[target.engine].balance.traits for target in targets}
        sticky_arm = split is not None and split.spec.unit == "session"
        sticky_endpoint = any(balance.by_session for balance in balances) or spec.session.replay is not None
        is_sticky = sticky_endpoint or sticky_arm
        self.targets = tuple(
            replace(
                target,
                is_sticky=is_sticky,
                sticky_endpoint=sticky_endpoint,
                sticky_arm=sticky_arm and target.is_measured,
            )
            for target in targets
        )
        # The indices of the target for units outside the experiment, and of forced arms
        self._out = next((at for at, target in enumerate(targets) if target.is_outside), 0)
        self._forced = {
            Forced(target.experiment or "", target.arm or ""): at
            for at, target in enumerate(targets)
            if target.is_forced
        }
        needs_session = is_sticky or spec.session.history is not None
        self._session = session_lookup(identity, by_tenant=by_tenant) if needs_session else None
        self._unit = unit_lookup(split.spec.unit, identity, by_tenant=by_tenant) if split is not None else None
        if self._unit == self._session:
            self._unit = self._session  # one lookup
        self._needs_body_for_arm = forcing.reads_bodies and split is not None
        self._repeatable = tuple(Decision(target) for target in self.targets)
        self._once = tuple(Decision(target, repeatable=False) for target in self.targets)
        self.place = 0  # among the routes of its table
        # Where engines read a version in the name that a client writes: what stands before it
        self.version_marks = frozenset(
            mark
            for target in targets
            for engine, model in target.destinations
            if model is None and (mark := engines[engine].protocol.traits.version_mark)
        )
        self.access = access_of(spec)
        is_constant = not (self.head or self.body or self.split or self._session or self.version_marks or self.access)
        self.always = self._repeatable[0] if is_constant else None

    @property
    def needed_of_body(self) -> str:
        """The end of an error about a body that cannot be read."""
        return f"; route '{self.name}' needs to read: {', '.join(condition.key for condition in self.body)}"

    def choose(self, facts: Facts, chance: Callable[[], float], in_head: bool) -> Decision | Undecided:
        """Choose a target after the conditions hold; `in_head`: no condition used the body.

        Session and unit are looked up before any random assignment: a request that is decided again with its body must
        not be randomized twice.
        """
        if self.access is not None and not self.access.admits(facts.principal):
            return Undecided.FORBIDDEN
        session = self._session.find(facts) if self._session is not None else _NOTHING
        if session is None:
            return Undecided.NEEDS_BODY
        in_head = in_head and session.in_head
        if self._needs_body_for_arm and facts.operation in INFERENCE_OPERATIONS:
            if facts.forced is None and facts.body is None:
                return Undecided.NEEDS_BODY
            in_head = False  # the next request's body may force an arm
        if facts.forced is not None and facts.forced in self._forced:
            return self._decide(self._forced[facts.forced], session.value, in_head)
        if session is LATER and self._unit is self._session:
            return self._decide(0, None, False)
        if self.split is None:
            return self._decide(0, session.value, in_head)
        assert self._unit is not None
        unit = session if self._unit is self._session else self._unit.find(facts)
        if unit is None:
            return Undecided.NEEDS_BODY
        if unit is LATER:
            return self._decide(0, session.value, False)
        value = unit.value
        if value is None:
            arm = self.split.assign_by_chance(chance)
            return self._decide(self._out if arm is None else arm, session.value, False)
        text = value if isinstance(value, str) else value.id
        arm = self.split.assign(text)
        if arm is None:
            arm = self._out
        return Decision(self.targets[arm], session.value, in_head and unit.in_head, text)

    def name_as_read(self, model: str) -> str:
        """A model's name as this route's engines read it, without a version or label. A route that names a model with
        its label takes just that one."""
        if self.model is None or model not in self.model.patterns:
            for mark in self.version_marks:
                model = model.partition(mark)[0]
        return model

    def admits(self, principal: Principal | None) -> bool:
        """Whether a caller may use the route."""
        return self.access is None or self.access.admits(principal)

    @property
    def is_fork(self) -> bool:
        """Whether the head determines the route, and the arm by a unit in the head or by chance."""
        if self.split is None or self.body or self._needs_body_for_arm:
            return False
        return self.by_session or self._unit is None or not self._unit.parameters

    @property
    def by_session(self) -> bool:
        """Whether the session is the experiment's unit."""
        return self._unit is not None and self._unit is self._session

    @property
    def needs_session(self) -> bool:
        """Whether decisions need the session of a request."""
        return self._session is not None

    @property
    def unit_header(self) -> str | None:
        """The header with the unit; None if the unit is a session or there is none."""
        return self._unit.header if self._unit is not None and not self.by_session else None

    def unit_of(self, facts: Facts) -> str | None:
        """The unit of a request for this route's experiment, if it has one."""
        match = self._unit.find(facts) if self._unit is not None else None
        return None if match is None or match.value is None else id_of(match.value)

    def _decide(self, index: int, session: AnySession | None, repeatable: bool) -> Decision:
        if session is None:
            return (self._repeatable if repeatable else self._once)[index]
        return Decision(self.targets[index], session, repeatable)


_NOTHING = UnitMatch(None, in_head=True)


def _targets(spec: RouteSpec, split: Split | None, may_be_forced: bool) -> tuple[Target, ...]:
    """One target for each arm (an arm without a model uses the route's), then the target for units outside the
    experiment, then forced arms."""
    base = Target(
        spec.name,
        spec.engine or "",
        spec.model,
        resume=spec.resume,
        history=spec.session.history,
        replay=spec.session.replay,
        max_body_bytes=spec.max_body_bytes,
        fallbacks=spec.fallback,
    )
    if split is None:
        return (base,)
    experiment = split.spec
    arms = tuple(
        replace(
            base,
            engine=arm.engine,
            model=arm.model or spec.model,
            experiment=experiment.name,
            arm=arm.name,
            fallbacks=arm.fallback or spec.fallback,
        )
        for arm in experiment.arms
    )
    out = (replace(arms[split.control], arm=None),) if split.membership is not None else ()
    forced = tuple(replace(arm, is_forced=True) for arm in arms) if may_be_forced else ()
    return arms + out + forced
