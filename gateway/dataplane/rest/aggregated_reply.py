"""Replies of the fleet: one from those of many endpoints."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import orjson

from gateway.dataplane.context.local_replies import JSON
from gateway.protocol.conversion.errors import error_json
from gateway.protocol.errors import ErrorKind, GatewayError
from gateway.upstream.endpoint_client import HttpReply
from gateway.wire.http1.head import Field

_MERGED_AT_ONCE_BYTES = 64 * 1024


class AggregatedReply(NamedTuple):
    """A whole reply; `reason` names the kind of a failure."""

    status: int
    body: bytes = b""
    fields: Sequence[Field] = ()
    content_type: str = JSON
    reason: str = ""


async def merged(
    answers: list[HttpReply], merge: Callable[[list[Any]], Any], shape: type, *, as_it_is: bool = True
) -> AggregatedReply:
    """One answer from those that have its shape; a single one stays `as_it_is`, to the byte. Many, or long ones, are
    merged in a thread: other requests go on meanwhile."""
    if as_it_is and len(answers) == 1:
        return passed_on(answers[0])
    if sum(len(answer.body) for answer in answers) <= _MERGED_AT_ONCE_BYTES:
        return _merged(answers, merge, shape)
    return await asyncio.to_thread(_merged, answers, merge, shape)


def _merged(answers: list[HttpReply], merge: Callable[[list[Any]], Any], shape: type) -> AggregatedReply:
    values = [value for answer in answers if isinstance(value := _json_of(answer), shape)]
    if not values:
        raise GatewayError(ErrorKind.UPSTREAM_PROTOCOL, "no engine answered as the V2 protocol says")
    return AggregatedReply(200, orjson.dumps(merge(values)))


def _json_of(answer: HttpReply) -> Any:
    """What an endpoint answered; None where that is not JSON."""
    try:
        return orjson.loads(answer.body)
    except orjson.JSONDecodeError:
        return None


def agreed(answers: list[HttpReply | GatewayError], names_engines: bool) -> AggregatedReply:
    """Success where all succeeded, else the first failure, and how many succeeded."""
    failures = [answer for answer in answers if isinstance(answer, GatewayError) or not answer.is_good]
    if not failures:
        return passed_on(next(answer for answer in answers if isinstance(answer, HttpReply)))
    failure = failures[0]
    if len(answers) == 1 and isinstance(failure, HttpReply):
        return passed_on(failure)
    done = f"; done on {len(answers) - len(failures)} of {len(answers)} endpoints" if len(answers) > 1 else ""
    if isinstance(failure, GatewayError):
        raise GatewayError(failure.kind, failure.message + done)
    where = f" (endpoint {failure.endpoint.url}{done})" if names_engines else done
    text = _error_text(failure) + where
    return AggregatedReply(failure.status, error_json(text), _code_of(failure))


def _error_text(failure: HttpReply) -> str:
    try:
        return str(orjson.loads(failure.body)["error"])
    except (orjson.JSONDecodeError, KeyError, TypeError):
        return failure.body.decode("utf-8", "replace") or f"status {failure.status}"


def passed_on(answer: HttpReply) -> AggregatedReply:
    return AggregatedReply(answer.status, answer.body, _code_of(answer), answer.content_type)


def _code_of(answer: HttpReply) -> Sequence[Field]:
    """The status of the engine's gRPC for a client of gRPC: REST has fewer."""
    return () if answer.code is None else ((b"grpc-status", b"%d" % answer.code),)
