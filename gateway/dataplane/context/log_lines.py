"""Lines of the access log in the format `otel`, of which most begin as an earlier one."""

from __future__ import annotations

from datetime import UTC, datetime
from time import monotonic, time

import orjson

from gateway.dataplane.context.ended_request import NOTHING, EndedRequest, common_of, log_entry
from gateway.observability.access_log import common_fields, own_fields

_MAX_BEGINNINGS = 4096


class LogLines:
    """Renders what `AccessLog` renders of an entry, at a third of the price."""

    def __init__(self) -> None:
        self._beginnings: dict[tuple[object, ...], tuple[str, EndedRequest]] = {}
        self._second = 0
        self._time = ""

    def line(self, ended: EndedRequest) -> str:
        attempts, known = ended.attempts, ended.facts
        num_attempts = len(attempts.past) + (attempts.attempt is not None) if attempts is not None else 0
        key = common_of(ended), ended.endpoint, ended.status, ended.reason, ended.code, num_attempts
        found = self._beginnings.get(key)
        if found is None:
            found = self._begin(key, ended)
        if ended.generated is not NOTHING or (known is not None and known.session is not None):
            own = orjson.dumps(own_fields(log_entry(ended)))[1:-1].decode()
        else:
            own = _own_text(ended)
        now = time()
        second = int(now)
        if second != self._second:
            self._second = second
            self._time = datetime.fromtimestamp(second, UTC).strftime("%Y-%m-%dT%H:%M:%S.")
        millis = int((now - second) * 1000)
        return f'{{"@timestamp":"{self._time}{millis:03d}+00:00","client.address":"{ended.peer}",{found[0]},{own}}}'

    def _begin(self, key: tuple[object, ...], ended: EndedRequest) -> tuple[str, EndedRequest]:
        if len(self._beginnings) >= _MAX_BEGINNINGS:
            self._beginnings.clear()
        beginning = orjson.dumps(common_fields(log_entry(ended)))[1:-1].decode()
        # with the request: the ids of its parts stay theirs
        found = self._beginnings[key] = beginning, ended._replace(trace=None, attempts=None, facts=None)
        return found


def _own_text(ended: EndedRequest) -> str:
    """As `own_fields` of the request's entry, of which most requests have few; a client's address needs no escapes."""
    attempts, trace, text = ended.attempts, ended.trace, f'"event.duration":{int(ended.seconds * 1e9)}'
    if ended.request_id:
        request_id = orjson.dumps(ended.request_id.decode("latin-1")).decode()
        text = f'{text},"http.request.header.x-request-id":{request_id}'
    if ended.request_bytes:
        text = f'{text},"http.request.body.size":{ended.request_bytes}'
    if ended.response_bytes:
        text = f'{text},"http.response.body.size":{ended.response_bytes}'
    if attempts is not None:
        if attempts.waited:
            text = f'{text},"pointsman.wait.duration":{attempts.waited:.6f}'
        if attempts.first_byte_at:
            seconds = ended.seconds - (monotonic() - attempts.first_byte_at)
            text = f'{text},"pointsman.first_byte.duration":{seconds:.6f}'
    if trace is not None and trace.is_sampled:
        trace_id, span_id = trace.trace_id.decode("ascii"), trace.span_id.decode("ascii")
        text = f'{text},"trace_id":"{trace_id}","span_id":"{span_id}"'
    return text
