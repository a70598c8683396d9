"""A request as hooks see it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from typing import Any

import orjson

from gateway.hooks.results import Change
from gateway.protocol.principal import Principal

Field = tuple[bytes, bytes]


class HookRequest:
    """A request for a route, on its way to `engine`. Hooks read it, and return a `Change` to change it.

    `body` is whole and not compressed; its first `json_bytes` are JSON, binary tensors follow (None: all is JSON).
    `operation` and `protocol` are named as in rules, `api` as in `dialects:` (None where it is V2's inference of
    tensors, or about a model). `session`, `experiment`, `arm`, `principal` are None where there is none. `state` is
    the hooks' own, from `on_request` to `on_reply`.
    """

    __slots__ = (
        "_headers",
        "_json",
        "api",
        "arm",
        "body",
        "engine",
        "experiment",
        "fields",
        "json_bytes",
        "method",
        "model",
        "operation",
        "path",
        "peer",
        "principal",
        "protocol",
        "request_id",
        "route",
        "session",
        "state",
        "version",
    )

    def __init__(
        self,
        *,
        route: str,
        engine: str,
        model: str,
        method: str,
        path: str,
        fields: Sequence[Field],
        body: bytes,
        operation: str = "infer",
        protocol: str = "rest",
        version: str | None = None,
        api: str | None = None,
        json_bytes: int | None = None,
        session: str | None = None,
        experiment: str | None = None,
        arm: str | None = None,
        principal: Principal | None = None,
        request_id: str = "",
        peer: str = "",
    ) -> None:
        self.route = route
        self.engine = engine
        self.model = model
        self.version = version
        self.method = method
        self.path = path
        self.fields = list(fields)
        self.body = body
        self.json_bytes = json_bytes
        self.operation = operation
        self.protocol = protocol
        self.api = api
        self.session = session
        self.experiment = experiment
        self.arm = arm
        self.principal = principal
        self.request_id = request_id
        self.peer = peer
        self.state: dict[str, Any] = {}
        self._headers: Mapping[str, str] | None = None
        self._json: Any = ...

    @property
    def headers(self) -> Mapping[str, str]:
        """The first field of each name, in lower case. With `auth:`, credentials are not among them."""
        if self._headers is None:
            self._headers = {name.decode("latin-1"): _text(value) for name, value in reversed(self.fields)}
        return self._headers

    @property
    def tenant(self) -> str:
        """The verified caller's; empty where there is none."""
        return self.principal.tenant if self.principal is not None else ""

    @property
    def json(self) -> Any:
        """The body's JSON, read once; None where it is no JSON. Do not change it: return a `Change`."""
        if self._json is ...:
            try:
                self._json = orjson.loads(self.body[: self.json_bytes])
            except orjson.JSONDecodeError:
                self._json = None
        return self._json

    def changed(self, change: Change) -> HookRequest:
        """The same with a change.

        Raises: ValueError where the body has no fields to change.
        """
        made = copy(self)
        if change.engine is not None:
            made.engine = change.engine
        if change.headers:
            names = {name.lower().encode("ascii") for name in change.headers}
            made.fields = [each for each in self.fields if each[0] not in names] + [
                (name.lower().encode("ascii"), value.encode("latin-1"))
                for name, value in change.headers.items()
                if value is not None
            ]
            made._headers = None
        if change.changes_body:
            made._change_body(change)
        return made

    def _change_body(self, change: Change) -> None:
        document = change.body
        if document is None:
            if not isinstance(self.json, dict):
                raise ValueError("the body is no JSON object: it has no fields to change")
            document = {name: value for name, value in self.json.items() if name not in change.remove}
            document |= change.fields
        if _model_of(document) != _model_of(self.json):
            raise ValueError("the body names another model: Change(model=...) routes to one")
        text = orjson.dumps(document)
        if self.json_bytes is None:
            self.body = text
        else:
            self.body = text + self.body[self.json_bytes :]
            self.json_bytes = len(text)
        self._json = document


def _model_of(document: Any) -> Any:
    return document.get("model") if isinstance(document, dict) else None


def _text(value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value.decode("latin-1")
