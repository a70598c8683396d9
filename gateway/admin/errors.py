"""Errors of the admin API: `{"detail": "reason"}` for every cause, in the replies and in its OpenAPI."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.routing import Match

from gateway.dry_run.recording import NoRecordingError, RecordingError
from gateway.redis.bounded_client import BoundedRedis
from gateway.redis.command import StoreError
from gateway.rule_versions.version import EditError, NoSuchVersion, RulesRefused
from gateway.supervision.control_plane import ControlPlane
from gateway.yaml.problems import Problem

Json = dict[str, Any]

_REFUSAL = "Refusal"
_SCHEMA: Json = {
    "title": _REFUSAL,
    "type": "object",
    "required": ["detail"],
    "properties": {"detail": {"type": "string", "description": "The error and its cure."}},
}
# Errors of any call, of calls with a body, and of calls with a name in their path.
_ALWAYS = {
    "401": "no key, or an unknown one",
    "403": "a key of a lower role; a foreign web page",
    "429": "too many wrong keys from this address",
    "503": "the keys file cannot be used; Redis, or a worker, does not answer",
}
_WITH_BODY = {
    "400": "not JSON, or not a valid request",
    "408": "the body has not arrived in time",
    "413": "the body is too long",
}
_WITH_NAME = {"404": "there is no resource of this name"}
_VALIDATION = {"422": "a field is missing, unknown or invalid"}


# The statuses of errors that endpoints pass on.
_STATUSES: dict[type[Exception], int] = {
    EditError: 409,
    NoRecordingError: 404,
    NoSuchVersion: 404,
    RecordingError: 409,
    StoreError: 503,  # the gateway's fault, not the caller's
}


def add_errors(app: FastAPI) -> None:
    """Give all errors one form; called once all endpoints are added."""
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(HTTPException, _refused)
    app.add_exception_handler(RulesRefused, _rules_refused)
    app.add_exception_handler(Exception, _failed)
    for kind, status in _STATUSES.items():
        app.add_exception_handler(kind, partial(_passed_on, status))
    describe = app.openapi

    def described() -> Json:
        if app.openapi_schema is None:
            app.openapi_schema = _with_refusals(describe())
        return app.openapi_schema

    app.openapi = described  # type: ignore[method-assign]


async def _invalid(_: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    return JSONResponse({"detail": "; ".join(map(_sentence, error.errors()))}, 422)


def _sentence(error: Json) -> str:
    where = ".".join(str(part) for part in error.get("loc", ()))
    return f"{where}: {error.get('msg', 'is wrong')}"


async def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    headers = dict(error.headers or {})
    if error.status_code == 405:  # of all endpoints at this path (RFC 9110 section 15.5.6)
        headers["Allow"] = ", ".join(sorted(_methods(request)))
    return JSONResponse({"detail": error.detail}, error.status_code, headers)


def _methods(request: Request) -> set[str]:
    routes = [route for route in request.app.routes if route.matches(request.scope)[0] is not Match.NONE]
    return {method for route in routes for method in getattr(route, "methods", None) or ()}


async def _rules_refused(_: Request, error: Exception) -> Response:
    assert isinstance(error, RulesRefused)
    return JSONResponse({"detail": str(error), "problems": problems_json(error.problems)}, 422)


async def _passed_on(status: int, _: Request, error: Exception) -> Response:
    return JSONResponse({"detail": str(error)}, status)


async def _failed(_: Request, error: Exception) -> Response:
    """A bug; its details are in the log."""
    return JSONResponse({"detail": "the gateway has failed at this; its log says how"}, 500)


def _with_refusals(described: Json) -> Json:
    schemas = described.setdefault("components", {}).setdefault("schemas", {})
    schemas.pop("HTTPValidationError", None)
    schemas.pop("ValidationError", None)
    schemas[_REFUSAL] = _SCHEMA
    for operations in described["paths"].values():
        for operation in operations.values():
            if isinstance(operation, dict):
                _describe(operation)
    return described


def _describe(operation: Json) -> None:
    """Add an operation's errors; descriptions of its own stay."""
    parameters = operation.get("parameters", ())
    expected = dict(_ALWAYS)
    if "requestBody" in operation:
        expected |= _WITH_BODY
    if any(each["in"] == "path" for each in parameters):
        expected |= _WITH_NAME
    if parameters or "requestBody" in operation:
        expected |= _VALIDATION
    responses = operation["responses"]
    if parameters or "requestBody" in operation:
        written = responses.get("422", {}).get("description")
        if written in (None, "Validation Error"):
            responses.pop("422", None)
    for status, description in expected.items():
        responses.setdefault(status, {"description": description})
    for status, response in responses.items():
        if status >= "400" and status != "409":
            response["content"] = {"application/json": {"schema": {"$ref": f"#/components/schemas/{_REFUSAL}"}}}


def problems_json(problems: Sequence[Problem]) -> list[Json]:
    return [
        {
            "file": problem.location.file,
            "line": problem.location.line,
            "column": problem.location.column,
            "severity": problem.severity.value,
            "message": problem.message,
        }
        for problem in problems
    ]


def unknown(kind: str, name: str, known: Iterable[str]) -> HTTPException:
    return HTTPException(404, f"there is no {kind} '{name}'; there are {', '.join(known) or 'none'}")


def store_of(control: ControlPlane, contents: str) -> BoundedRedis:
    """Raises: HTTPException, which names the `contents` that a gateway without Redis does not store."""
    if control.store is None:
        raise HTTPException(503, f"this gateway has no Redis (--redis), so it keeps no {contents}")
    return control.store
