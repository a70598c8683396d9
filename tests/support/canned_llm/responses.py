"""OpenAI's Responses API."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import orjson

from tests.support.canned_llm.openai import cut, error, wanted_schema
from tests.support.canned_llm.plan import Call, Plan, PromptCache, RefusedError
from tests.support.canned_llm.reading import Frame, Job, Turn, number, plan_chat, text_of


class Responses:
    """POST /v1/responses."""

    error = staticmethod(error)

    def __init__(self, cache: PromptCache):
        self._cache = cache

    def error_event(self, message: str) -> bytes:
        reply = {"type": "error", "code": "server_error", "message": message, "param": None, "sequence_number": 99}
        return b"event: error\ndata: " + orjson.dumps(reply) + b"\n\n"

    def read(self, body: Mapping[str, Any], number_of_job: int) -> Job:
        choice = body.get("tool_choice") or "auto"
        text_format = (body.get("text") or {}).get("format") or {}
        if text_format.get("type") == "json_schema":  # the chat API nests these fields one level deeper
            text_format = {"type": "json_schema", "json_schema": text_format}
        plan = plan_chat(
            read_items(body),
            self._cache,
            goes_on=True,
            tools={
                tool["name"]: tool.get("parameters") or {}
                for tool in body.get("tools") or []
                if tool.get("type") == "function"
            },
            tool_choice=choice["name"] if isinstance(choice, dict) else choice,
            schema=wanted_schema(text_format),
            max_tokens=number(body, "max_output_tokens"),
            thinks=((body.get("reasoning") or {}).get("effort") or "none") != "none",
        )
        return Job(body, body["model"], [plan], f"resp_{number_of_job}")

    def whole(self, job: Job) -> bytes:
        items = [item for item, _ in self._items(job)]
        return orjson.dumps(self._response(job, items, done=True))

    def frames(self, job: Job) -> Iterator[Frame]:
        number_of_event = 0

        def frame(kind: str, *, is_token: bool = False, is_last: bool = False, **reply: Any) -> Frame:
            nonlocal number_of_event
            data = orjson.dumps({"type": f"response.{kind}", "sequence_number": number_of_event, **reply})
            number_of_event += 1
            return Frame(b"event: response." + kind.encode() + b"\ndata: " + data + b"\n\n", is_token, is_last)

        yield frame("created", response=self._response(job, [], done=False))
        yield frame("in_progress", response=self._response(job, [], done=False))
        items = []
        for place, (item, pieces) in enumerate(self._items(job)):
            at: dict[str, Any] = {"item_id": item["id"], "output_index": place}
            opened = {**item, "status": "in_progress", **empty(item)}
            yield frame("output_item.added", output_index=place, item=opened)
            if item["type"] == "function_call":
                for piece in pieces:
                    yield frame("function_call_arguments.delta", is_token=True, **at, delta=piece)
                yield frame("function_call_arguments.done", **at, arguments=item["arguments"], name=item["name"])
            elif item["type"] == "reasoning":
                at["content_index"] = 0
                for piece in pieces:
                    yield frame("reasoning_text.delta", **at, delta=piece)
                yield frame("reasoning_text.done", **at, text="".join(pieces))
            else:
                at["content_index"] = 0
                part = item["content"][0]
                yield frame("content_part.added", **at, part={**part, "text": ""})
                for piece in pieces:
                    yield frame("output_text.delta", is_token=True, **at, delta=piece, logprobs=[])
                yield frame("output_text.done", **at, text=part["text"], logprobs=[])
                yield frame("content_part.done", **at, part=part)
            yield frame("output_item.done", output_index=place, item=item)
            items.append(item)
        last = "incomplete" if job.plans[0].finish == "length" else "completed"
        yield frame(last, is_last=True, response=self._response(job, items, done=True))

    def _items(self, job: Job) -> Iterator[tuple[dict[str, Any], Sequence[str]]]:
        """The output's items, each with its pieces."""
        plan = job.plans[0]
        if plan.thoughts:
            content = [{"type": "reasoning_text", "text": "".join(plan.thoughts)}]
            yield {"type": "reasoning", "id": f"rs_{job.id}", "summary": [], "content": content}, plan.thoughts
        if plan.tokens:
            text = {"type": "output_text", "text": plan.text, "annotations": [], "logprobs": []}
            item = {"type": "message", "id": f"msg_{job.id}", "role": "assistant", "status": ending(plan)}
            yield {**item, "content": [text]}, plan.tokens
        for place, call in enumerate(plan.calls):
            yield call_item(call, place, job), cut(call.arguments, 8)

    def _response(self, job: Job, items: Sequence[Mapping[str, Any]], *, done: bool) -> dict[str, Any]:
        plan = job.plans[0]
        stopped = {"reason": "max_output_tokens"} if done and plan.finish == "length" else None
        return {
            "id": job.id,
            "object": "response",
            "created_at": job.created,
            "status": ending(plan) if done else "in_progress",
            "error": None,
            "incomplete_details": stopped,
            "instructions": job.body.get("instructions"),
            "metadata": job.body.get("metadata") or {},
            "model": job.model,
            "output": items,
            "parallel_tool_calls": job.body.get("parallel_tool_calls", True),
            "temperature": job.body.get("temperature", 1.0),
            "tool_choice": job.body.get("tool_choice") or "auto",
            "tools": job.body.get("tools") or [],
            "top_p": job.body.get("top_p", 1.0),
            "max_output_tokens": job.body.get("max_output_tokens"),
            "previous_response_id": None,
            "usage": usage(job) if done else None,
        }


class InputTokens(Responses):
    """POST /v1/responses/input_tokens, as OpenAI answers it."""

    def read(self, body: Mapping[str, Any], number_of_job: int) -> Job:
        plan = Plan((), "stop", prompt_tokens=sum(len(turn.text.split()) for turn in read_items(body)))
        return Job({**body, "stream": False}, body["model"], [plan], f"resp_{number_of_job}")

    def whole(self, job: Job) -> bytes:
        return orjson.dumps({"object": "response.input_tokens", "input_tokens": job.prompt_tokens})


def ending(plan: Plan) -> str:
    return "incomplete" if plan.finish == "length" else "completed"


def usage(job: Job) -> dict[str, Any]:
    return {
        "input_tokens": job.prompt_tokens,
        "input_tokens_details": {"cached_tokens": job.cached_tokens},
        "output_tokens": job.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": len(job.plans[0].thoughts)},
        "total_tokens": job.prompt_tokens + job.completion_tokens,
    }


def call_item(call: Call, place: int, job: Job) -> dict[str, Any]:
    return {
        "type": "function_call",
        "id": f"fc_{job.id}_{place}",
        "call_id": f"call_{job.id}_{place}",
        "name": call.name,
        "arguments": call.arguments,
        "status": "completed",
    }


def empty(item: Mapping[str, Any]) -> dict[str, Any]:
    """The empty fields of an announced item."""
    return {"arguments": ""} if item["type"] == "function_call" else {"content": []}


def read_items(body: Mapping[str, Any]) -> list[Turn]:
    """The turns of `input`: a text, or messages, calls and call outputs."""
    content = body.get("input")
    items = [{"role": "user", "content": content}] if isinstance(content, str) else content
    if not isinstance(items, list) or not items:
        raise RefusedError("'input' must be a text or a list with at least one item")
    turns = [Turn("system", body["instructions"])] if body.get("instructions") else []
    for item in items:
        kind = item.get("type", "message")
        if kind == "message":
            turns.append(Turn(item["role"], text_of(item.get("content"))))
        elif kind == "function_call_output":
            turns.append(Turn("tool", text_of(item.get("output"))))
        elif kind == "function_call":
            turns.append(Turn("assistant", ""))
    return turns
