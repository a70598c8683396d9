"""`/rules/explain`: how rules would route a described request."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import asdict
from types import MappingProxyType
from typing import Annotated, Any, Literal

from fastapi import FastAPI, HTTPException
from pydantic import BaseModel, Field

from gateway.admin.auth import Viewer
from gateway.admin.redaction import redacted_condition
from gateway.admin.rule_versions import Files, check_may_bring
from gateway.config.specs import RequestSpec, RulesSpec, TensorSpec
from gateway.config.value_parsers import OPERATIONS
from gateway.dry_run.recording import facts_of
from gateway.protocol.advertised_models import AdvertisedModels, ModelName
from gateway.protocol.datatypes import DATATYPES
from gateway.protocol.sequence import id_of
from gateway.routing.decision import Decision, Target
from gateway.routing.explain import Assignment, Check, Explanation, explain
from gateway.routing.table import Table
from gateway.rule_versions.version import RulesRefused
from gateway.supervision.control_plane import ControlPlane
from gateway.supervision.rulebook import Rulebook
from gateway.yaml.problems import suggest

Json = dict[str, Any]

Word = Annotated[str, Field(max_length=4096)]
Axis = Annotated[int, Field(ge=0, le=2**63 - 1)]


class DescribedTensor(BaseModel):
    """An input of the request."""

    name: Word
    datatype: Annotated[str, Field(max_length=16, description="FP32, INT64, BYTES, ...")]
    shape: Annotated[list[Axis], Field(max_length=64)]
    bytes: Annotated[int, Field(ge=0, le=2**63 - 1)] | None = None


class RequestDescription(BaseModel):
    """A request in the terms of the rules; an absent field is absent from the request."""

    model: Word
    version: Word | None = None
    protocol: Literal["rest", "grpc", "openai"] = "rest"
    operation: Annotated[str, Field(max_length=64, description="An operation of `match:`.")] = "infer"
    header: Annotated[dict[Word, Word], Field(max_length=256)] = {}
    parameter: Annotated[dict[Word, Any], Field(max_length=256)] = {}
    input: Annotated[list[DescribedTensor], Field(max_length=256)] = []
    session: Word | None = None
    tenant: Word | None = None
    key: Annotated[Word | None, Field(description="The id of the caller's API key, or the subject of its token.")] = (
        None
    )
    claim: Annotated[dict[Word, list[Word]], Field(max_length=256, description="The claims of its token.")] = {}
    has_image: bool = False
    force: (
        Annotated[str, Field(max_length=512, description="EXPERIMENT=ARM, as if the caller were allowed to force it.")]
        | None
    ) = None
    files: Files | None = None


# The models of endpoints, by engine and URL
Lists = Mapping[tuple[str, str], AdvertisedModels]
NO_LISTS: Lists = MappingProxyType({})


def add_rule_trials(app: FastAPI, control: ControlPlane) -> None:
    """Add `/rules/explain`."""

    @app.post(
        "/rules/explain", tags=["rules"], responses={422: {"description": "the files have errors; see `problems`"}}
    )
    async def explain_request(body: RequestDescription, caller: Viewer) -> Json:
        """The route of a request and the checks of each route, by the rules in force or by candidate `files`, which
        require role admin. Nothing is sent."""
        check_may_bring(caller, body.files)
        rules = control.rules if body.files is None else await rules_of(control.book, body.files)
        table = Table(rules)
        try:
            facts = facts_of(_spec(body), table.identity)
        except ValueError as error:
            raise HTTPException(422, f"force: {error}") from error
        explanation = explain(table, facts, random.random)
        return explanation_json(explanation, (body.model, body.version or ""), rules, control.models)


async def rules_of(book: Rulebook, files: Files | None) -> RulesSpec:
    """The rules in force, or those of candidate files.

    Raises: RulesRefused.
    """
    if files is None:
        return book.rules
    loaded = await book.judge(files)
    if loaded.rules is None:
        raise RulesRefused(loaded.problems)
    return loaded.rules


def explanation_json(
    explanation: Explanation,
    model: ModelName,
    rules: RulesSpec,
    listed: Lists = NO_LISTS,
) -> Json:
    """`listed` are the models of the endpoints, by engine and URL, as far as they are known."""
    decision = explanation.decision
    return {
        "decision": _decision(decision, model, rules, listed) if isinstance(decision, Decision) else None,
        "steps": [
            {"route": step.route, "verdict": step.verdict.value, "checks": list(map(_check, step.checks))}
            for step in explanation.steps
        ],
        "assignment": _assignment(explanation.assignment) if explanation.assignment is not None else None,
        "targets": [_target(target, model, rules, listed) for target in explanation.targets],
    }


def _check(check: Check) -> Json:
    return {**asdict(check), "expected": redacted_condition(check.key.rpartition(" ")[2], check.expected)}


def _decision(decision: Decision, model: ModelName, rules: RulesSpec, listed: Lists) -> Json:
    route = decision.target.route
    limits = [limit.name for limit in rules.limits if not limit.routes or route in limit.routes]
    budgets = [budget.name for budget in rules.budgets if not budget.routes or route in budget.routes]
    session = id_of(decision.session) if decision.session is not None else None
    return {**_target(decision.target, model, rules, listed), "session": session, "limits": limits, "budgets": budgets}


def _target(target: Target, model: ModelName, rules: RulesSpec, listed: Lists) -> Json:
    urls = [endpoint.url for endpoint in rules.engines[target.engine].endpoints]
    name, hedging = target.model or model[0], rules.engines[target.engine].hedging
    lists = {url: listed[target.engine, url] for url in urls if (target.engine, url) in listed}
    return {
        "route": target.route,
        "engine": target.engine,
        "model": name,
        "experiment": target.experiment,
        "arm": target.arm,
        "forced": target.is_forced,
        "endpoints": urls,
        "lacking": [url for url, models in lists.items() if not models.serves((name, model[1]))],
        "fallbacks": [fallback.text for fallback in target.fallbacks],
        "hedging": hedging.text if hedging is not None else None,
    }


def _assignment(assignment: Assignment) -> Json:
    names = ("experiment", "unit_kind", "unit", "arm", "position", "layer", "place")
    draws = [{"arm": span.name, "share": span.share, "intervals": span.intervals} for span in assignment.arm_spans]
    return {**{name: getattr(assignment, name) for name in names}, "forced": assignment.is_forced, "draws": draws}


def _spec(body: RequestDescription) -> RequestSpec:
    """Raises: HTTPException where a value is unknown."""
    if body.operation not in OPERATIONS:
        raise HTTPException(422, f"operation: unknown value {body.operation!r}{suggest(body.operation, OPERATIONS)}")
    for tensor in body.input:
        if tensor.datatype not in DATATYPES:
            raise HTTPException(
                422, f"input {tensor.name!r}: unknown datatype {tensor.datatype!r}{suggest(tensor.datatype, DATATYPES)}"
            )
    for name, value in body.parameter.items():
        if not isinstance(value, bool | int | float | str):
            raise HTTPException(422, f"parameter {name!r} is neither a text, a number, true nor false")
    inputs = tuple(TensorSpec(each.name, each.datatype, tuple(each.shape), each.bytes) for each in body.input)
    return RequestSpec(
        model=body.model,
        version=body.version,
        protocol=body.protocol,
        operation=body.operation,
        header=body.header,
        parameter=body.parameter,
        input=inputs,
        session=body.session,
        tenant=body.tenant,
        key=body.key,
        claim={name: tuple(values) for name, values in body.claim.items()},
        has_image=body.has_image,
        force=body.force,
    )
