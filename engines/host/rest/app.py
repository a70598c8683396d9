"""The REST front as an application.

Source: Triton server `http_server.cc` (HTTPAPIServer::Handle).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache, partial
from typing import Any

import orjson

from engines.core.errors import EngineError, ErrorCode, internal
from engines.host.client_limits import ClientLimits
from engines.host.exchange import JSON, Direct, Exchange, error_json
from engines.host.openai.handler import OpenAIFront
from engines.host.request_fields import read_version
from engines.host.rest.inference import Infer, Inference
from engines.host.rest.triton_json import flag, get, has, members, read_json, string, unsigned
from engines.host.service import Service
from gateway.protocol.conversion import control
from gateway.protocol.errors import ErrorKind, GatewayError
from gateway.protocol.operations import ApiCall, LlmApi, Operation, read_path
from gateway.protocol.protobuf import message
from gateway.protocol.restricted_apis import CATEGORIES, OF_A_PAGE, is_change_by_page

_NO_PARAMETERS: Mapping[str, str] = {}
_TRITON_APIS = (None, LlmApi.GENERATE, LlmApi.INFER)
_OPENAI_APIS = frozenset({LlmApi.CHAT, LlmApi.COMPLETIONS, LlmApi.RESPONSES, LlmApi.MESSAGES, LlmApi.EMBEDDINGS})


# vLLM's, which only engines have.
_TOKENIZE = ApiCall(Operation.COUNT_TOKENS, ("POST",), api=LlmApi.CHAT)


@lru_cache(maxsize=1024)
def _read_path(path: str) -> ApiCall | None:
    """The request of a path; None for those that only the gateway has: MLServer's and feedback."""
    call = _TOKENIZE if path == "/tokenize" else read_path(path)
    if call is None or call.operation not in CATEGORIES or not (call.api in _TRITON_APIS or call.api in _OPENAI_APIS):
        return None
    return call


class RestApp:
    """Answers requests by the service."""

    def __init__(self, service: Service, limits: ClientLimits | None = None) -> None:
        self._service = service
        self._limits = limits or ClientLimits()
        inference = self._inference = Inference(service, self._limits)
        self._inferences = {
            Operation.GENERATE: inference.generate,
            Operation.GENERATE_STREAM: inference.generate_stream,
        }
        self._openai = OpenAIFront(service, self._limits)
        self._restrictions = service.restrictions["rest"]

    def direct(self, method: str, path: str, headers: Mapping[bytes, bytes], head: bytes) -> Direct | None:
        """What answers an infer with this head; None for any other request."""
        call = _read_path(path)
        if call is None or call.operation is not Operation.INFER or method not in call.verbs:
            return None
        if self._restrictions and self._restrictions.missing_header(call.operation, headers):
            return None
        forward = self._inference.forward
        forwarded = forward.parameters_of_head(head) if forward else _NO_PARAMETERS
        return partial(Infer, self._inference, call.model or "", call.version or "", forwarded)

    async def __call__(self, exchange: Exchange) -> None:
        """Raises: EngineError."""
        call = _read_path(exchange.path)
        if call is None or (call.api in _OPENAI_APIS and not self._openai.models):
            await self._refuse(exchange, ErrorKind.NOT_FOUND, "Not Found")
        elif self._restrictions and (header := self._restrictions.missing_header(call.operation, exchange.headers)):
            text = f"This API is restricted, expecting header '{header}'"
            await self._refuse(exchange, ErrorKind.FORBIDDEN, text)
        elif is_change_by_page(call.operation, exchange.method, exchange.headers):
            await self._refuse(exchange, ErrorKind.FORBIDDEN, OF_A_PAGE)
        elif exchange.method not in call.verbs:
            await self._refuse(exchange, ErrorKind.METHOD_NOT_ALLOWED, "Method Not Allowed")
        elif (answer := self._inferences.get(call.operation)) is not None:
            await answer(exchange, call.model or "", call.version or "")
        elif call.api in _OPENAI_APIS:
            await self._openai.answer(exchange, call)
        else:
            await self._control(exchange, call)

    async def _refuse(self, exchange: Exchange, kind: ErrorKind, text: str) -> None:
        """Refuse as Triton does; as OpenAI or Anthropic on their paths, where the host has language models."""
        error, path = GatewayError(kind, text), exchange.path
        if path.startswith("/v1/") and self._openai.models:
            api = LlmApi.MESSAGES if path.startswith("/v1/messages") else LlmApi.CHAT
            await self._openai.refuse(exchange, error, api)
        else:
            await exchange.reply(error.status.http, error_json(text), JSON)

    async def _control(self, exchange: Exchange, call: ApiCall) -> None:
        """Raises: EngineError."""
        read_version(call.version or "")
        body = b""
        if exchange.method == "POST":
            body = await exchange.body(self._limits.max_body_bytes)
            if body:
                check_control_body(call.operation, read_json(body))
        try:
            rpc, request = control.read_request(exchange.method, exchange.path, body)
            try:
                response = await self._service.rpc(rpc, request)
            except EngineError as error:
                if call.operation is not Operation.MODEL_READY or error.code is ErrorCode.INTERNAL:
                    raise
                response = message(f"inference.{rpc}Response")()
            reply = control.write_reply(rpc, response)
        except GatewayError as error:
            await exchange.reply(error.status.http, error_json(error.message), JSON)
            return
        state = _HEALTH.get(call.operation)
        if state is None:
            await exchange.reply(reply.status, reply.body, JSON)
        elif JSON[1] in exchange.headers.get(b"accept", b""):
            # The body of the V2 protocol, which KServe's clients read; Triton's is empty.
            name = {"name": call.model} if call.operation is Operation.MODEL_READY else {}
            body = orjson.dumps({**name, state: getattr(response, state)})
            await exchange.reply(reply.status, body, JSON)
        else:
            await exchange.reply(reply.status, reply.body)


# The field of the reply.
_HEALTH = {Operation.SERVER_LIVE: "live", Operation.SERVER_READY: "ready", Operation.MODEL_READY: "ready"}


_LOG_SETTINGS: dict[str, Callable[[Any], Any]] = {
    "log_info": flag,
    "log_warning": flag,
    "log_error": flag,
    "log_verbose_level": unsigned,
    "log_format": string,
}


def check_control_body(operation: Operation, content: Any) -> None:
    """Raises: EngineError."""
    if operation is Operation.LOGGING:
        for name, check in _LOG_SETTINGS.items():
            value = get(content, name)
            if value is not None:  # null leaves a setting as it is
                check(value)
    elif operation is Operation.LOAD and has(content, "parameters"):
        for name, value in members(content["parameters"]).items():
            string(value)
            if name != "config" and not name.startswith("file:"):
                raise internal("unexpected error on creating Triton parameter")
