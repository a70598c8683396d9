"""Experiments as flags: the arm of a unit, as an application learns it before its requests.

The same hash, layers, holdouts and kept arms as for requests; `Table.decide` decides about these.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from gateway.config.specs import IdentitySpec
from gateway.protocol.ofrep import TARGETING_KEY, FlagContext, FlagError, FlagErrorCode, FlagReason, FlagValue
from gateway.protocol.principal import Principal, tenant_of
from gateway.protocol.sequence import TenantSession, bounded
from gateway.routing.assignment import Forced, Split
from gateway.routing.matchers import as_text
from gateway.routing.route import Route
from gateway.routing.table import Table

_BY_CHANCE = "assigns each request by chance (unit: request): no application can know the arm beforehand"


class FlagUnit(NamedTuple):
    """What a flag is evaluated for: the text that is hashed, and the session, where an arm is kept with it."""

    text: str
    session: str | None


@dataclass(frozen=True, slots=True)
class AssignedArm:
    """The arm of a unit, and why it has it. `token` is what a session keeps of it, None where it keeps nothing;
    `is_kept`: it is stored already."""

    arm: str
    reason: FlagReason
    in_experiment: bool = True
    is_forced: bool = False
    token: str | None = None
    is_kept: bool = False


class ExperimentFlag:
    """One experiment as a flag."""

    def __init__(self, split: Split, routes: list[Route], identity: IdentitySpec, *, by_tenant: bool) -> None:
        """`by_tenant`: each tenant has its own sessions."""
        self.key = split.spec.name
        self.split = split
        self._routes = routes
        kind, _, name = split.spec.unit.partition(":")
        self._is_by_chance = kind == "request"
        self.keeps_arms = kind == "session"
        self._attribute = identity.session_header if self.keeps_arms else name
        self._by_tenant = by_tenant
        models = {arm.name: {target.model for route in routes for target in route.targets if target.arm == arm.name}
                  for arm in split.spec.arms}  # fmt: skip
        self._models = {name: next(iter(of_arm)) for name, of_arm in models.items() if len(of_arm) == 1}
        self._engines = {arm.name: arm.engine for arm in split.spec.arms}

    def admits(self, principal: Principal | None) -> bool:
        """Whether a caller may use a route with the experiment."""
        return not self._routes or any(route.admits(principal) for route in self._routes)

    def unit(self, context: FlagContext, principal: Principal | None) -> FlagUnit:
        """The unit of a context: the attribute that has the name of the session's header, or of the header or parameter
        by which the experiment assigns; else the targeting key.

        Raises: FlagError.
        """
        if self._is_by_chance:
            raise FlagError(FlagErrorCode.GENERAL, f"experiment '{self.key}' {_BY_CHANCE}")
        value = context.attribute(self._attribute)
        text = as_text(value).strip() if value is not None else context.targeting_key
        if not text:
            what = f"the context has neither {TARGETING_KEY} nor {self._attribute}, the unit of experiment '{self.key}'"
            raise FlagError(FlagErrorCode.TARGETING_KEY_MISSING, what)
        if not self.keeps_arms:
            return FlagUnit(text, None)
        text = bounded(text)
        return FlagUnit(text, TenantSession(text, tenant_of(principal)) if self._by_tenant else text)

    def assign(self, unit: FlagUnit, stored: str | None, forced: Forced | None) -> AssignedArm:
        """The arm of a unit; `stored` is what its session keeps of the experiment, `forced` the arm that the request
        chooses with a valid key."""
        split = self.split
        if forced is not None and forced.experiment == self.key:
            return AssignedArm(forced.arm, FlagReason.TARGETING_MATCH, is_forced=True)
        index = split.assign(unit.text)
        by_hash = FlagReason.SPLIT if split.is_split or split.membership is not None else FlagReason.STATIC
        if index is None:
            return AssignedArm(split.spec.control_arm.name, by_hash, in_experiment=False)
        arm = split.spec.arms[index].name
        kept = split.sticky_arm(stored) if self.keeps_arms else None
        if kept is not None:
            reason = by_hash if kept == arm else FlagReason.TARGETING_MATCH
            return AssignedArm(kept, reason, token=stored, is_kept=True)
        return AssignedArm(arm, by_hash, token=split.reserved_token(arm) if self.keeps_arms else None)

    def value(self, assigned: AssignedArm, *, names_engines: bool) -> FlagValue:
        """`names_engines`: the caller may know them."""
        metadata: dict[str, str | float | bool] = {
            "experiment": self.key,
            "unit": self.split.spec.unit,
            "share": round(self.split.shares[assigned.arm], 6),
            "inExperiment": assigned.in_experiment,
        }
        if assigned.is_forced:
            metadata["forced"] = True
        if names_engines:
            metadata["engine"] = self._engines[assigned.arm]
            model = self._models.get(assigned.arm)
            if model is not None:
                metadata["model"] = model
        return FlagValue(self.key, assigned.arm, assigned.reason, metadata)


class FlagTable:
    """All experiments of one snapshot as flags, in the order of the rules."""

    def __init__(self, table: Table, *, by_tenant: bool) -> None:
        routes: dict[str, list[Route]] = {name: [] for name in table.splits}
        for route in table.routes:
            if route.split is not None:
                routes[route.split.spec.name].append(route)
        self._flags = {
            name: ExperimentFlag(split, routes[name], table.identity, by_tenant=by_tenant)
            for name, split in table.splits.items()
        }

    def find(self, key: str) -> ExperimentFlag:
        """Raises: FlagError(FLAG_NOT_FOUND)."""
        flag = self._flags.get(key)
        if flag is None:
            text = f"no experiment '{key[:100]}' is in the rules"
            raise FlagError(FlagErrorCode.FLAG_NOT_FOUND, text)
        return flag

    def admitting(self, principal: Principal | None) -> list[ExperimentFlag]:
        """The flags that a caller may evaluate."""
        return [flag for flag in self._flags.values() if flag.admits(principal)]
