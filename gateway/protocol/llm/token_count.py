"""Counts of tokens for Anthropic's clients, by engines without its messages.

vLLM counts at `/tokenize` with the model's chat template; OpenAI at `/v1/responses/input_tokens`. An engine that has
neither is answered for with an estimate.
Sources: Anthropic API reference, "Count tokens in a Message"; OpenAI API reference, "Get input token counts"; vLLM
`entrypoints/serve/tokenize/protocol.py` (TokenizeChatRequest, TokenizeResponse).
"""

from __future__ import annotations

import orjson

from gateway.protocol.conversion.errors import read_error
from gateway.protocol.llm import responses_request
from gateway.protocol.llm.canonical import Generation
from gateway.protocol.llm.chat_request import written_messages
from gateway.protocol.llm.errors import anthropic_error
from gateway.protocol.llm.json_fields import Fields, dumped
from gateway.protocol.llm.openai_options import written_tool
from gateway.protocol.llm.token_estimate import estimated_prompt_tokens
from gateway.protocol.translator import EngineRequest, Reply, WholeTranslator

# The engine does not count, or not conversations.
_NOT_COUNTED = frozenset({400, 404, 405, 415, 422, 501})
_OF_PROMPTS = ("model", "input", "instructions", "tools")


def estimated_count(generation: Generation) -> bytes:
    """The reply where no engine counts."""
    return orjson.dumps({"input_tokens": estimated_prompt_tokens(generation), "estimated": True})


class TokenCountTranslator(WholeTranslator):
    """An Anthropic client, and an engine of OpenAI's APIs; see `Translator`."""

    def __init__(
        self, generation: Generation, *, model: str, base_path: str, has_chat: bool, request_id: str = ""
    ) -> None:
        """`model` is the name at the engine. `has_chat`: it has chat or completions, not only responses."""
        self._generation = generation
        self._model = model
        self._base_path = base_path
        self._has_chat = has_chat
        self._request_id = request_id

    def request(self) -> EngineRequest:
        """Raises: GatewayError."""
        generation, model = self._generation, self._model
        if not self._has_chat:
            fields = orjson.loads(responses_request.write_request(generation, model=model, drop=True)[0])
            body = dumped({name: fields[name] for name in _OF_PROMPTS if name in fields})
            return EngineRequest(f"{self._base_path}/responses/input_tokens", body)
        chat: Fields = {"model": model, "messages": written_messages(generation), "add_generation_prompt": True}
        if generation.tools:
            chat["tools"] = [written_tool(tool) for tool in generation.tools]
        return EngineRequest(f"{self._base_path.removesuffix('/v1')}/tokenize", dumped(chat))

    def whole(self, reply: Reply) -> Reply:
        """The count; an error of the engine's that says more than that it does not count."""
        if reply.status >= 400 and reply.status not in _NOT_COUNTED:
            message = read_error(reply.body)[0]
            return Reply(reply.status, anthropic_error(message, reply.status, self._request_id))
        count = _count(reply.body) if reply.status == 200 else None
        if count is None:
            return Reply(200, estimated_count(self._generation))
        return Reply(200, orjson.dumps({"input_tokens": count}))


def _count(body: bytes) -> int | None:
    try:
        fields = orjson.loads(body)
    except orjson.JSONDecodeError:
        return None
    if not isinstance(fields, dict):
        return None
    count = fields.get("count", fields.get("input_tokens"))
    return count if type(count) is int else None
