"""A request as hooks see it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import orjson

from gateway.hooks.results import Change
from gateway.protocol.principal import Principal

Field = tuple[bytes, bytes]


@dataclass(frozen=True, slots=True)
class HookFacts:
    """What is the same for all requests with one head; see `HookRequest`."""

    route: str
    engine: str
    model: str
    method: str
    path: str
    version: str | None = None
    operation: str = "infer"
    protocol: str = "rest"
    api: str | None = None
    experiment: str | None = None
    arm: str | None = None
    principal: Principal | None = None


class HookRequest:
    """A request for a route, on its way to an engine. Hooks read it, and return a `Change` to change it.

    `body` is whole and not compressed; its first `json_bytes` are JSON, binary tensors follow (None: all is JSON).
    `session` is None where it has none. `state` is the hooks' own, from `on_request` to `on_reply`.
    """

    __slots__ = (
        "_fields",
        "_headers",
        "_json",
        "_state",
        "body",
        "facts",
        "json_bytes",
        "peer",
        "request_id",
        "session",
    )

    def __init__(
        self,
        facts: HookFacts,
        body: bytes,
        fields: Sequence[Field] | Callable[[], Sequence[Field]],
        json_bytes: int | None = None,
        request_id: str = "",
        session: str | None = None,
        peer: str = "",
    ) -> None:
        """`fields` are those of the head, names in lower case, or find them."""
        self.facts = facts
        self.body = body
        self.json_bytes = json_bytes
        self.request_id = request_id
        self.session = session
        self.peer = peer
        self._fields = fields
        self._state: dict[str, Any] | None = None
        self._headers: Mapping[str, str] | None = None
        self._json: Any = ...

    @property
    def route(self) -> str:
        """The route that has named the hooks."""
        return self.facts.route

    @property
    def engine(self) -> str:
        """Where the request goes."""
        return self.facts.engine

    @property
    def model(self) -> str:
        """The model, as the client names it."""
        return self.facts.model

    @property
    def version(self) -> str | None:
        """The model's version, where the client names one."""
        return self.facts.version

    @property
    def method(self) -> str:
        """The HTTP method."""
        return self.facts.method

    @property
    def path(self) -> str:
        """The path, without the values of a query."""
        return self.facts.path

    @property
    def operation(self) -> str:
        """As rules name it: infer, generate, stream, chat, completion, embedding, metadata, ..."""
        return self.facts.operation

    @property
    def protocol(self) -> str:
        """As rules name it: rest, grpc, openai."""
        return self.facts.protocol

    @property
    def api(self) -> str | None:
        """As `dialects:` names it: chat, completions, embeddings, responses, messages, generate, infer; None of a
        request about a model."""
        return self.facts.api

    @property
    def experiment(self) -> str | None:
        """The route's experiment."""
        return self.facts.experiment

    @property
    def arm(self) -> str | None:
        """The arm that the request has."""
        return self.facts.arm

    @property
    def principal(self) -> Principal | None:
        """The verified caller, where the rules have `auth:`."""
        return self.facts.principal

    @property
    def tenant(self) -> str:
        """The verified caller's; empty where there is none."""
        return self.facts.principal.tenant if self.facts.principal is not None else ""

    @property
    def state(self) -> dict[str, Any]:
        if self._state is None:
            self._state = {}
        return self._state

    @property
    def fields(self) -> Sequence[Field]:
        """All fields of the head, names in lower case. With `auth:`, credentials are not among them."""
        if callable(self._fields):
            self._fields = self._fields()
        return self._fields

    @property
    def headers(self) -> Mapping[str, str]:
        """The first field of each name, in lower case."""
        if self._headers is None:
            self._headers = {name.decode("latin-1"): _text(value) for name, value in reversed(self.fields)}
        return self._headers

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

        Raises: ValueError where the body has no fields to change; TypeError where a value is no JSON.
        """
        facts = replace(self.facts, engine=change.engine) if change.engine is not None else self.facts
        fields = self._changed_fields(change.headers) if change.headers else self._fields
        body, json_bytes = self._changed_body(change) if change.changes_body else (self.body, self.json_bytes)
        made = HookRequest(facts, body, fields, json_bytes, self.request_id, self.session, self.peer)
        made._state = self.state
        return made

    def _changed_fields(self, headers: Mapping[str, str | None]) -> list[Field]:
        names = {name.lower().encode("ascii") for name in headers}
        return [each for each in self.fields if each[0] not in names] + [
            (name.lower().encode("ascii"), value.encode("latin-1"))
            for name, value in headers.items()
            if value is not None
        ]

    def _changed_body(self, change: Change) -> tuple[bytes, int | None]:
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
            return text, None
        return text + self.body[self.json_bytes :], len(text)


def _model_of(document: Any) -> Any:
    return document.get("model") if isinstance(document, dict) else None


def _text(value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value.decode("latin-1")
