"""Anthropic's messages API."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import orjson

from tests.support.canned_llm.openai import cut
from tests.support.canned_llm.plan import Call, Plan, PromptCache, RefusedError
from tests.support.canned_llm.reading import Frame, Job, Turn, number, plan_chat, read_turns, stops, text_of

KINDS = {
    400: "invalid_request_error",
    401: "authentication_error",
    404: "not_found_error",
    429: "rate_limit_error",
    503: "overloaded_error",
}
CHOICES = {"auto": "auto", "any": "required", "none": "none"}
REASONS = {"length": "max_tokens", "tool_calls": "tool_use"}


def error(message: str, status: int) -> bytes:
    kind = KINDS.get(status, "invalid_request_error" if status < 500 else "api_error")
    return orjson.dumps({"type": "error", "error": {"type": kind, "message": message}})


def error_event(message: str) -> bytes:
    return b"event: error\ndata: " + error(message, 500) + b"\n\n"


def event(reply: Mapping[str, Any]) -> bytes:
    return b"event: " + str(reply["type"]).encode() + b"\ndata: " + orjson.dumps(reply) + b"\n\n"


class Messages:
    """POST /v1/messages."""

    error = staticmethod(error)
    error_event = staticmethod(error_event)

    def __init__(self, cache: PromptCache):
        self._cache = cache

    def read(self, body: Mapping[str, Any], number_of_job: int) -> Job:
        max_tokens = number(body, "max_tokens")
        if max_tokens is None:
            raise RefusedError("max_tokens: Field required")
        choice = body.get("tool_choice") or {"type": "auto"}
        plan = plan_chat(
            turns_of(body),
            self._cache,
            goes_on=True,
            tools={tool["name"]: tool.get("input_schema") or {} for tool in body.get("tools") or []},
            tool_choice=choice["name"] if choice["type"] == "tool" else CHOICES[choice["type"]],
            max_tokens=max_tokens,
            stop=stops(body.get("stop_sequences")),
            thinks=(body.get("thinking") or {}).get("type") == "enabled",
        )
        return Job(body, body["model"], [plan], f"msg_{number_of_job}")

    def whole(self, job: Job) -> bytes:
        plan = job.plans[0]
        content: list[dict[str, Any]] = []
        if plan.thoughts:
            content.append({"type": "thinking", "thinking": "".join(plan.thoughts), "signature": "proven"})
        if plan.tokens:
            content.append({"type": "text", "text": plan.text})
        content += [{**block(call, place, job), "input": orjson.loads(call.arguments)} for place, call in calls(plan)]
        return orjson.dumps({**self._message(job), "content": content, **ending(plan), "usage": usage(job)})

    def frames(self, job: Job) -> Iterator[Frame]:
        plan = job.plans[0]
        opened = {**self._message(job), "content": [], "stop_reason": None, "stop_sequence": None}
        opened["usage"] = {**usage(job), "output_tokens": 1}
        yield Frame(event({"type": "message_start", "message": opened}))
        yield Frame(event({"type": "ping"}))
        index = 0
        if plan.thoughts:
            yield self._start(index, {"type": "thinking", "thinking": "", "signature": ""})
            for piece in plan.thoughts:
                yield self._delta(index, {"type": "thinking_delta", "thinking": piece}, is_token=False)
            yield self._delta(index, {"type": "signature_delta", "signature": "proven"}, is_token=False)
            yield self._stop(index)
            index += 1
        if plan.tokens:
            yield self._start(index, {"type": "text", "text": ""})
            for token in plan.tokens:
                yield self._delta(index, {"type": "text_delta", "text": token})
            yield self._stop(index)
            index += 1
        for place, call in calls(plan):
            yield self._start(index, {**block(call, place, job), "input": {}})
            for piece in cut(call.arguments, 8):
                yield self._delta(index, {"type": "input_json_delta", "partial_json": piece})
            yield self._stop(index)
            index += 1
        used = {"output_tokens": job.completion_tokens}
        yield Frame(event({"type": "message_delta", "delta": ending(plan), "usage": used}))
        yield Frame(event({"type": "message_stop"}), is_last=True)

    def _message(self, job: Job) -> dict[str, Any]:
        return {"id": job.id, "type": "message", "role": "assistant", "model": job.model}

    def _start(self, index: int, content: Mapping[str, Any]) -> Frame:
        return Frame(event({"type": "content_block_start", "index": index, "content_block": content}))

    def _delta(self, index: int, delta: Mapping[str, Any], *, is_token: bool = True) -> Frame:
        return Frame(event({"type": "content_block_delta", "index": index, "delta": delta}), is_token=is_token)

    def _stop(self, index: int) -> Frame:
        return Frame(event({"type": "content_block_stop", "index": index}))


class CountTokens(Messages):
    """POST /v1/messages/count_tokens."""

    def read(self, body: Mapping[str, Any], number_of_job: int) -> Job:
        plan = Plan((), "stop", prompt_tokens=sum(len(turn.text.split()) for turn in turns_of(body)))
        return Job({**body, "stream": False}, body["model"], [plan], f"msg_{number_of_job}")

    def whole(self, job: Job) -> bytes:
        return orjson.dumps({"input_tokens": job.prompt_tokens})


def turns_of(body: Mapping[str, Any]) -> Sequence[Turn]:
    system = text_of(body.get("system"))
    return [*([Turn("system", system)] if system else []), *read_turns(body.get("messages"))]


def calls(plan: Plan) -> Iterator[tuple[int, Call]]:
    yield from enumerate(plan.calls)


def block(call: Call, place: int, job: Job) -> dict[str, Any]:
    return {"type": "tool_use", "id": f"toolu_{job.id}_{place}", "name": call.name}


def ending(plan: Plan) -> dict[str, Any]:
    reason = "stop_sequence" if plan.stopped_by else REASONS.get(plan.finish, "end_turn")
    return {"stop_reason": reason, "stop_sequence": plan.stopped_by}


def usage(job: Job) -> dict[str, int]:
    """Usage: input tokens do not include cached ones."""
    return {
        "input_tokens": job.prompt_tokens - job.cached_tokens,
        "cache_read_input_tokens": job.cached_tokens,
        "cache_creation_input_tokens": 0,
        "output_tokens": job.completion_tokens,
    }
