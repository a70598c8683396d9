"""How the admin API refuses: `{"detail": "why"}` whatever it is, and so its OpenAPI says."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.routing import Match

Json = dict[str, Any]

_REFUSAL = "Refusal"
_SCHEMA: Json = {
    "title": _REFUSAL,
    "type": "object",
    "required": ["detail"],
    "properties": {"detail": {"type": "string", "description": "What is wrong, and what would be right."}},
}
# What any call may be answered, and what those with a body, or with something named in their path.
_ALWAYS = {
    "401": "no key, or one that is not known here",
    "403": "a key of a lower role; a web page elsewhere",
    "429": "too many wrong keys from this address",
    "503": "the keys file cannot be used now; what is asked for needs Redis, or a worker, that does not answer",
}
_WITH_BODY = {
    "400": "no JSON, or nothing that can be done",
    "408": "the body does not come",
    "413": "the body is too long",
}
_WITH_NAME = {"404": "there is nothing of this name"}
_VALIDATION = {"422": "a field that is missing, unknown, or has no such value"}


def add_errors(app: FastAPI) -> None:
    """Have all refusals look alike. Called when all endpoints are there."""
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(HTTPException, _refused)
    app.add_exception_handler(Exception, _failed)
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
    """Where the mistake stands, and what it is."""
    where = ".".join(str(part) for part in error.get("loc", ()))
    return f"{where}: {error.get('msg', 'is wrong')}"


async def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    headers = dict(error.headers or {})
    if error.status_code == 405:  # of all endpoints at this path, not of the first alone (RFC 9110 section 15.5.6)
        headers["Allow"] = ", ".join(sorted(_methods(request)))
    return JSONResponse({"detail": error.detail}, error.status_code, headers)


def _methods(request: Request) -> set[str]:
    routes = [route for route in request.app.routes if route.matches(request.scope)[0] is not Match.NONE]
    return {method for route in routes for method in getattr(route, "methods", None) or ()}


async def _failed(_: Request, error: Exception) -> Response:
    """A fault of ours: what it was is for the log."""
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
    """Say of an operation how it refuses; what its endpoint says of a status stays."""
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
