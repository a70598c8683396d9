"""`pointsman explain`: the route and the arm of a request, and the checks of the other routes."""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from gateway.cli.check import RulePaths, print_problems, summarize
from gateway.cli.target_notes import notes_of
from gateway.config.engine_specs import EndpointSpec, EngineSpec
from gateway.config.rules import load_rules
from gateway.config.specs import RequestSpec, RulesSpec, TensorSpec
from gateway.config.value_parsers import OPERATIONS, PROTOCOLS
from gateway.config.value_parsers import parameter as parameter_value
from gateway.dry_run.recording import facts_of
from gateway.protocol.datatypes import DATATYPES
from gateway.protocol.grpc_methods import RPCS
from gateway.protocol.operations import INFERENCE_OPERATIONS, Operation
from gateway.protocol.sequence import id_of
from gateway.routing.decision import Decision, Facts, Target, Undecided
from gateway.routing.explain import Assignment, Check, Explanation, RouteVerdict, Step
from gateway.routing.explain import explain as explain_decision
from gateway.routing.layout import NUM_POSITIONS, Span
from gateway.routing.table import Table
from gateway.yaml import values

# The operation of an RPC with a model.
_OF_A_MODEL = {Operation.TRACE: Operation.MODEL_TRACE}

_MARKS = {
    RouteVerdict.MATCHED: ("✓", "bold green"),
    RouteVerdict.FAILED: ("✗", "red"),
    RouteVerdict.SKIPPED: ("·", "dim"),
}


def explain(
    paths: RulePaths,
    model: Annotated[str, typer.Option(help="The request's model.", show_default=False)],
    version: Annotated[str | None, typer.Option(help="The request's version of the model.")] = None,
    protocol: Annotated[
        str | None, typer.Option(help=f"The client's protocol: {', '.join(PROTOCOLS)}.", show_default="rest")
    ] = None,
    operation: Annotated[
        str | None, typer.Option(help=f"The operation: {', '.join(OPERATIONS)}.", show_default="infer")
    ] = None,
    rpc: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="The gRPC method, such as ModelInfer, instead of --protocol and --operation."
        ),
    ] = None,
    header: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME:VALUE", help="A header of the request, or its gRPC metadata; may be repeated."),
    ] = None,
    parameter: Annotated[
        list[str] | None, typer.Option(metavar="NAME=VALUE", help="A parameter of the body; may be repeated.")
    ] = None,
    session: Annotated[str | None, typer.Option(help="The session: put into the rules' session header.")] = None,
    tenant: Annotated[
        str | None,
        typer.Option(help="The tenant: put into the rules' tenant header; with auth, the verified caller's."),
    ] = None,
    key: Annotated[
        str | None, typer.Option(help="The id of the caller's API key, or the subject of its token.")
    ] = None,
    claim: Annotated[
        list[str] | None, typer.Option(metavar="NAME=VALUE", help="A claim of the caller's token; may be repeated.")
    ] = None,
    input: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME:DATATYPE:SHAPE[:SIZE]",
            help="An input tensor, such as image:FP32:1,3,224,224; SIZE as 64MiB, by default from the shape. "
            "May be repeated.",
        ),
    ] = None,
    has_image: Annotated[bool, typer.Option("--has-image", help="The request's messages contain an image.")] = False,
) -> int:
    """Explain where a request would go: its route, its arm of an experiment, and why earlier routes do not match.

    Nothing is sent. The same rules assign the same session to the same arm here and in every gateway. Exit code: 0 if a
    route matches, 1 if none does or the rules have errors.
    """
    loaded = load_rules(paths)
    if loaded.rules is None:
        print_problems(loaded)
        typer.echo(summarize(loaded))
        return 1
    table = Table(loaded.rules)
    protocol_name, meant = parse_operation(protocol, operation, rpc)
    request = RequestSpec(
        model=model,
        version=version,
        protocol=protocol_name,
        operation=meant.value,
        header=_headers(header or ()),
        parameter=dict(_parameter(text) for text in parameter or ()),
        input=tuple(_input(text) for text in input or ()),
        session=session,
        tenant=tenant,
        key=key,
        claim=_claims(claim or ()),
        has_image=has_image,
    )
    facts = facts_of(request, table.identity)
    explanation = explain_decision(table, facts, random.random)
    console = Console(highlight=False, soft_wrap=True)
    print_explanation(explanation, facts, table, console)
    if isinstance(explanation.decision, Decision):
        target = explanation.decision.target
        if target.fallbacks:
            console.print(_fallbacks(target))
        for note in notes_of(target, facts, loaded.rules) if facts.operation in INFERENCE_OPERATIONS else ():
            console.print(note, markup=False)
    for limit in _limits(explanation, facts, loaded.rules):
        console.print(limit)
    return 0 if explanation.has_target else 1


def print_explanation(explanation: Explanation, facts: Facts, table: Table, console: Console) -> None:
    width = max((len(step.route) for step in explanation.steps), default=0)
    for step in explanation.steps:
        console.print(_step(step, width))
    if explanation.assignment is not None:
        console.print()
        for line in _assignment(explanation.assignment):
            console.print(line)
    console.print()
    console.print(_outcome(explanation, facts, table))


def _step(step: Step, width: int) -> Text:
    mark, style = _MARKS[step.verdict]
    line = Text.assemble((f"{mark} ", style), (step.route.ljust(width), style))
    match step.verdict:
        case RouteVerdict.FAILED:
            line.append("  " + "; ".join(_failure(check) for check in step.failed))
        case RouteVerdict.SKIPPED:
            line.append("  not asked: a route before it matches", "dim")
        case RouteVerdict.MATCHED:
            line.append("  " + ("; ".join(_success(check) for check in step.checks) or "matches every request"))
    return line


def _failure(check: Check) -> str:
    actual = "is missing" if check.actual is None else f"is {check.actual}"
    return f"{check.key} {actual}, wanted {check.expected}"


def _success(check: Check) -> str:
    return (
        f"{check.key} is {check.actual}"
        if check.actual == check.expected
        else (f"{check.key} {check.actual} matches {check.expected}")
    )


def _assignment(assignment: Assignment) -> Iterable[Text]:
    name = (assignment.experiment, "bold")
    arm = f"arm {assignment.arm}" if assignment.arm is not None else "not its own"
    if assignment.is_forced:
        yield Text.assemble("experiment ", name, f": {arm}, since the request asks for it")
    elif assignment.unit is None:
        why = "each request anew" if assignment.unit_kind == "request" else f"the request has no {assignment.unit_kind}"
        yield Text.assemble("experiment ", name, f": {arm} by chance, {why}")
    else:
        unit = f"{assignment.unit_kind} {assignment.unit}"
        if assignment.place is not None:
            where = f"layer {assignment.layer}" if assignment.layer is not None else "its share"
            yield Text(f"{unit} stands at {assignment.place:.6f} in {where} of experiment {assignment.experiment}")
        at = f", at {assignment.position:.6f}" if assignment.arm is not None else ""
        yield Text.assemble("experiment ", name, f": {arm} has {unit}{at}" if at else f": {unit} is {arm}")
    for part in assignment.parts:
        yield _stretch(part.name, part.share, part.spans, None)
    if assignment.arm is not None:
        width = max(len(stretch.name) for stretch in assignment.arm_spans)
        for stretch in assignment.arm_spans:
            is_chosen = stretch.name == assignment.arm
            yield _stretch(stretch.name.ljust(width), stretch.share, stretch.spans, is_chosen)


def _stretch(name: str, share: float, spans: Iterable[Span], is_chosen: bool | None) -> Text:
    """The positions of an arm; `is_chosen` is None for other parts."""
    mark, style = (
        ("-", "dim") if is_chosen is None else _MARKS[RouteVerdict.MATCHED if is_chosen else RouteVerdict.FAILED]
    )
    intervals = ", ".join(f"{start / NUM_POSITIONS:.6f} to {end / NUM_POSITIONS:.6f}" for start, end in spans)
    return Text.assemble(f"  {mark} ", (name, style), f"  {share:.1%}: {intervals or 'nothing'}")


def _outcome(explanation: Explanation, facts: Facts, table: Table) -> Text:
    decision = explanation.decision
    if explanation.targets:
        goes = f"{facts.operation.value} of model {facts.model} goes to every endpoint that its requests may reach:"
        return Text("\n  ").join([Text(goes), *(_everywhere(target, table) for target in explanation.targets)])
    if not isinstance(decision, Decision):
        return Text(f"no route takes model {facts.model}: {_refusal(facts, decision)}", "bold red")
    target = decision.target
    arm = f", arm {target.arm}" if target.arm else ""
    engine = table.engines[target.engine]
    line = Text.assemble(f"model {facts.model} goes by route {target.route}{arm} to engine ", (target.engine, "bold"))
    session = f", session {id_of(decision.session)}" if decision.session else ""
    return line.append(
        f"{_renamed(target)} ({engine.balance.value} over {_addresses(engine, facts.protocol)}{session})"
    )


def _fallbacks(target: Target) -> Text:
    return Text(f"where that engine cannot answer: {', then '.join(fallback.text for fallback in target.fallbacks)}")


def _limits(explanation: Explanation, facts: Facts, rules: RulesSpec) -> Iterable[Text]:
    decision = explanation.decision
    if not isinstance(decision, Decision) or facts.operation not in INFERENCE_OPERATIONS:
        return
    for kind, limits in (("limit", rules.limits), ("budget", rules.budgets)):
        for limit in limits:
            if not limit.routes or decision.target.route in limit.routes:
                yield Text.assemble(f"{kind} ", (limit.name, "bold"), f": {limit.text}")


def _everywhere(target: Target, table: Table) -> Text:
    urls = _urls(table.engines[target.engine])
    return Text.assemble("engine ", (target.engine, "bold"), f"{_renamed(target)} ({urls})")


def _renamed(target: Target) -> str:
    return f" as {target.model}" if target.model else ""


def _refusal(facts: Facts, decision: object) -> str:
    if decision is Undecided.FORBIDDEN:
        return "the route that matches is not for this caller, who is answered 403, or 401 if anonymous"
    if facts.protocol != "grpc":
        return "the caller is answered 404, no_route"
    if facts.operation is Operation.GENERATE_STREAM:
        return "the message is answered by an error_message, or ends the stream by NOT_FOUND with triton_grpc_error"
    return "the caller is answered NOT_FOUND, no_route"


def _addresses(engine: EngineSpec, protocol: str) -> str:
    """The addresses, and whether the request is converted or translated."""
    native = "openai" if protocol == "openai" else "kserve"
    if engine.protocol.value != native:
        return f"{_urls(engine)}, translated to {engine.protocol.value}"
    if protocol == "grpc" and engine.speaks_grpc:
        return ", ".join([*map(_grpc_url, engine.endpoints), *(source.label for source in engine.sources)])
    urls = _urls(engine)
    if protocol == "grpc":
        return f"{urls}, converted to REST"
    return urls if engine.speaks_rest else f"{urls}, converted to gRPC"


def _urls(engine: EngineSpec) -> str:
    """Its endpoints, and the sources of others."""
    return ", ".join([*(endpoint.url for endpoint in engine.endpoints), *(source.label for source in engine.sources)])


def _grpc_url(endpoint: EndpointSpec) -> str:
    is_encrypted = endpoint.url.startswith(("https:", "grpcs:"))
    return f"{'grpcs' if is_encrypted else 'grpc'}://{endpoint.grpc}"


def parse_operation(protocol: str | None, operation: str | None, rpc: str | None) -> tuple[str, Operation]:
    """The protocol and the operation, as rules know them."""
    if rpc is None:
        known = _checked(operation or "infer", OPERATIONS, "--operation")
        return _checked(protocol or "rest", PROTOCOLS, "--protocol"), Operation(known)
    if protocol is not None or operation is not None:
        raise typer.BadParameter("it stands for --protocol and --operation: leave them out", param_hint="--rpc")
    meant = RPCS[_checked(rpc, tuple(RPCS), "--rpc")].operation
    meant = _OF_A_MODEL.get(meant, meant)
    if not meant.names_a_model:
        raise typer.BadParameter(f"{rpc} concerns no model: no rule decides on it", param_hint="--rpc")
    return "grpc", meant


def _checked(text: str, known: tuple[str, ...], option: str) -> str:
    try:
        return values.one_of(known)(text)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint=option) from error


def _headers(texts: Iterable[str]) -> dict[str, str]:
    headers = {}
    for text in texts:
        name, separator, value = text.partition(":")
        if not separator:
            raise typer.BadParameter(f"{text!r} is not NAME:VALUE", param_hint="--header")
        headers[name.strip().lower()] = value.strip()
    return headers


def _parameter(text: str) -> tuple[str, bool | int | str]:
    name, separator, value = text.partition("=")
    if not separator:
        raise typer.BadParameter(f"{text!r} is not NAME=VALUE", param_hint="--parameter")
    return name, parameter_value(value)


def _claims(texts: Iterable[str]) -> dict[str, tuple[str, ...]]:
    claims: dict[str, tuple[str, ...]] = {}
    for text in texts:
        name, separator, value = text.partition("=")
        if not separator:
            raise typer.BadParameter(f"{text!r} is not NAME=VALUE", param_hint="--claim")
        claims[name] = (*claims.get(name, ()), value)
    return claims


def _input(text: str) -> TensorSpec:
    """Read NAME:DATATYPE:SHAPE[:SIZE]; a name may have colons, as TensorFlow's do."""
    parts = text.split(":")
    at = next((index for index, part in enumerate(parts) if index and part in DATATYPES), None)
    if at is None or not at + 2 <= len(parts) <= at + 3:
        known = ", ".join(DATATYPES)
        raise typer.BadParameter(
            f"{text!r} is not NAME:DATATYPE:SHAPE[:SIZE]; datatypes: {known}", param_hint="--input"
        )
    try:
        shape = tuple(values.at_least(0, values.integer)(axis) for axis in parts[at + 1].split(",") if axis)
        num_bytes = values.size(parts[at + 2]) if len(parts) == at + 3 else None
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--input") from error
    return TensorSpec(":".join(parts[:at]), parts[at], shape, num_bytes)
