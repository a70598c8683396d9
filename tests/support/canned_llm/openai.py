"""OpenAI's chat, completions and embeddings, as vLLM answers them."""

import base64
import hashlib
import struct
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import orjson

from tests.support.canned_llm.plan import Call, Plan, PromptCache, RefusedError, plan_text, words_of
from tests.support.canned_llm.reading import Frame, Job, number, plan_chat, read_turns, stops

LOGPROB = -0.25  # of any token; alternatives have less
KINDS = {401: "authentication_error", 404: "NotFoundError", 429: "rate_limit_error", 503: "service_unavailable"}
DONE = Frame(b"data: [DONE]\n\n", is_last=True)


def error(message: str, status: int) -> bytes:
    kind = KINDS.get(status, "BadRequestError" if status < 500 else "InternalServerError")
    return orjson.dumps({"error": {"message": message, "type": kind, "param": None, "code": status}})


def error_event(message: str) -> bytes:
    """The end of a failed stream, as vLLM sends it."""
    return b"data: " + error(message, 500) + b"\n\ndata: [DONE]\n\n"


def usage(job: Job) -> dict[str, Any]:
    reply: dict[str, Any] = {
        "prompt_tokens": job.prompt_tokens,
        "total_tokens": job.prompt_tokens + job.completion_tokens,
        "completion_tokens": job.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": job.cached_tokens} if job.cached_tokens else None,
    }
    if any(plan.thoughts for plan in job.plans):
        reply["completion_tokens_details"] = {"reasoning_tokens": sum(len(plan.thoughts) for plan in job.plans)}
    return reply


def event(job: Job, kind: str, choices: Sequence[Mapping[str, Any]], **more: Any) -> bytes:
    reply = {"id": job.id, "object": kind, "created": job.created, "model": job.model, "choices": choices, **more}
    return b"data: " + orjson.dumps(reply) + b"\n\n"


def usage_frames(job: Job, kind: str) -> Iterator[Frame]:
    if (job.body.get("stream_options") or {}).get("include_usage"):
        yield Frame(event(job, kind, [], usage=usage(job)))
    yield DONE


class Chat:
    """POST /v1/chat/completions. `prefill`: whether the answer continues a last message of the assistant `always`, only
    where the request is `flagged` as vLLM requires (continue_final_message), or `never`."""

    chunk = "chat.completion.chunk"
    error = staticmethod(error)
    error_event = staticmethod(error_event)

    def __init__(self, cache: PromptCache, prefill: str = "always"):
        self._cache = cache
        self._prefill = prefill

    def read(self, body: Mapping[str, Any], number_of_job: int) -> Job:
        turns = read_turns(body.get("messages"))
        flagged = bool(body.get("continue_final_message"))
        if flagged and body.get("add_generation_prompt", True) and self._prefill == "flagged":
            raise RefusedError("Cannot set both `continue_final_message` and `add_generation_prompt` to True.")
        tools = {tool["function"]["name"]: tool["function"].get("parameters") or {} for tool in body.get("tools") or []}
        choice = body.get("tool_choice") or "auto"
        plan = plan_chat(
            turns,
            self._cache,
            goes_on=self._prefill == "always" or (self._prefill == "flagged" and flagged),
            tools=tools,
            tool_choice=choice["function"]["name"] if isinstance(choice, dict) else choice,
            schema=wanted_schema(body.get("response_format")),
            max_tokens=number(body, "max_completion_tokens", "max_tokens"),
            stop=stops(body.get("stop")),
            thinks=(body.get("reasoning_effort") or "none") != "none",
            ignore_eos=bool(body.get("ignore_eos")),
        )
        n = number(body, "n") or 1
        return Job(body, body["model"], [plan] * n, f"chatcmpl-{number_of_job}", detail={"n": n})

    def whole(self, job: Job) -> bytes:
        choices = []
        for index, plan in enumerate(job.plans):
            message: dict[str, Any] = {"role": "assistant", "content": plan.text or None}
            if plan.thoughts:
                message["reasoning_content"] = "".join(plan.thoughts)
            message["tool_calls"] = [tool_call(call, place, job) for place, call in enumerate(plan.calls)]
            choices.append(
                {
                    "index": index,
                    "message": message,
                    "logprobs": self._logprobs(job, plan.tokens),
                    "finish_reason": plan.finish,
                    "stop_reason": plan.stopped_by,
                }
            )
        reply = {"id": job.id, "object": "chat.completion", "created": job.created, "model": job.model}
        return orjson.dumps({**reply, "choices": choices, "usage": usage(job)})

    def frames(self, job: Job) -> Iterator[Frame]:
        n = len(job.plans)
        for index in range(n):
            yield Frame(self._chunk(job, index, {"role": "assistant", "content": ""}))
        plan = job.plans[0]
        for piece in plan.thoughts:
            for index in range(n):
                yield Frame(self._chunk(job, index, {"reasoning_content": piece}))
        for place, call in enumerate(plan.calls):
            opened = {**tool_call(call, place, job), "index": place}
            opened["function"] = {"name": call.name, "arguments": ""}
            pieces = [opened, *({"index": place, "function": {"arguments": piece}} for piece in cut(call.arguments, 8))]
            for piece in pieces:
                for index in range(n):
                    yield Frame(self._chunk(job, index, {"tool_calls": [piece]}), is_token=True)
        for token_place, token in enumerate(plan.tokens):
            # At its limit a choice ends with its last token; at its own end it adds a token without text.
            ends = plan if token_place + 1 == len(plan.tokens) and plan.finish == "length" else None
            for index in range(n):
                yield Frame(self._chunk(job, index, {"content": token}, [token], ends), is_token=True)
        if plan.finish != "length":
            for index in range(n):
                yield Frame(self._chunk(job, index, {"content": ""}, ends=plan))
        yield from usage_frames(job, self.chunk)

    def _chunk(
        self, job: Job, index: int, delta: Mapping[str, Any], tokens: Sequence[str] = (), ends: Plan | None = None
    ) -> bytes:
        choice: dict[str, Any] = {"index": index, "delta": delta, "logprobs": self._logprobs(job, tokens)}
        choice["finish_reason"] = ends.finish if ends else None
        if ends:
            choice["stop_reason"] = ends.stopped_by
        return event(job, self.chunk, [choice])

    def _logprobs(self, job: Job, tokens: Sequence[str]) -> dict[str, Any] | None:
        if not job.body.get("logprobs") or not tokens:
            return None
        num_others = number(job.body, "top_logprobs") or 0
        return {
            "content": [
                {**logprob(token), "top_logprobs": [logprob(token, place) for place in range(num_others)]}
                for token in tokens
            ]
        }


def logprob(token: str, place: int = 0) -> dict[str, Any]:
    text = token if place == 0 else f"{token}?{place}"
    return {"token": text, "logprob": LOGPROB - place, "bytes": list(text.encode())}


def tool_call(call: Call, place: int, job: Job) -> dict[str, Any]:
    reply = {"name": call.name, "arguments": call.arguments}
    return {"id": f"call_{job.id}_{place}", "type": "function", "function": reply}


def cut(text: str, size: int) -> list[str]:
    return [text[start : start + size] for start in range(0, len(text), size)]


def wanted_schema(response_format: Any) -> dict[str, Any] | None:
    """The JSON schema of `response_format`, an invented one for json_object, or None for text."""
    kind = (response_format or {}).get("type", "text")
    if kind == "text":
        return None
    if kind == "json_object":
        return {"properties": {"count": {"type": "string"}}}
    found: dict[str, Any] = response_format["json_schema"].get("schema") or {}
    return found


class Tokenize(Chat):
    """POST /tokenize, as vLLM answers it."""

    def read(self, body: Mapping[str, Any], number_of_job: int) -> Job:
        count = sum(len(turn.text.split()) for turn in read_turns(body.get("messages")))
        plan = Plan((), "stop", prompt_tokens=count)
        return Job({**body, "stream": False}, body["model"], [plan], f"tokenize-{number_of_job}")

    def whole(self, job: Job) -> bytes:
        count = job.prompt_tokens
        return orjson.dumps({"count": count, "max_model_len": 4096, "tokens": list(range(count)), "token_strs": None})


class Completions:
    """POST /v1/completions. Token ids in a prompt stand for the numbers' words."""

    chunk = "text_completion"
    error = staticmethod(error)
    error_event = staticmethod(error_event)

    def __init__(self, cache: PromptCache):
        self._cache = cache

    def read(self, body: Mapping[str, Any], number_of_job: int) -> Job:
        n = number(body, "n") or 1
        prompts = read_prompts(body.get("prompt"))
        plans = [
            plan_text(
                prompt,
                prompt=prompt,
                cache=self._cache,
                max_tokens=number(body, "max_tokens") or 16,
                stop=stops(body.get("stop")),
                ignore_eos=bool(body.get("ignore_eos")),
            )
            for prompt in prompts
        ]
        spread = [plan for plan in plans for _ in range(n)]
        detail = {"n": n, "prompts": [prompt for prompt in prompts for _ in range(n)]}
        return Job(body, body["model"], spread, f"cmpl-{number_of_job}", detail=detail)

    def whole(self, job: Job) -> bytes:
        choices = [
            {
                "index": index,
                "text": (prompt if job.body.get("echo") else "") + plan.text,
                "logprobs": self._logprobs(job, plan.tokens, 0),
                "finish_reason": plan.finish,
                "stop_reason": plan.stopped_by,
            }
            for index, (plan, prompt) in enumerate(zip(job.plans, job.detail["prompts"], strict=True))
        ]
        reply = {"id": job.id, "object": self.chunk, "created": job.created, "model": job.model}
        return orjson.dumps({**reply, "choices": choices, "usage": usage(job)})

    def frames(self, job: Job) -> Iterator[Frame]:
        if job.body.get("echo"):
            for index, prompt in enumerate(job.detail["prompts"]):
                yield Frame(self._chunk(job, index, prompt))
        offsets = [0] * len(job.plans)
        for place in range(max(len(plan.tokens) for plan in job.plans) + 1):
            for index, plan in enumerate(job.plans):
                if place < len(plan.tokens):
                    token = plan.tokens[place]
                    ends = plan if place + 1 == len(plan.tokens) and plan.finish == "length" else None
                    yield Frame(self._chunk(job, index, token, [token], offsets[index], ends), is_token=True)
                    offsets[index] += len(token)
                elif place == len(plan.tokens) and plan.finish != "length":
                    yield Frame(self._chunk(job, index, "", ends=plan))
        yield from usage_frames(job, self.chunk)

    def _chunk(
        self, job: Job, index: int, text: str, tokens: Sequence[str] = (), offset: int = 0, ends: Plan | None = None
    ) -> bytes:
        choice: dict[str, Any] = {"index": index, "text": text, "logprobs": self._logprobs(job, tokens, offset)}
        choice |= {"finish_reason": ends.finish if ends else None, "stop_reason": ends.stopped_by if ends else None}
        return event(job, self.chunk, [choice])

    def _logprobs(self, job: Job, tokens: Sequence[str], offset: int) -> dict[str, Any] | None:
        others = number(job.body, "logprobs")
        if others is None or not tokens:
            return None
        return {
            "tokens": tokens,
            "token_logprobs": [LOGPROB] * len(tokens),
            "top_logprobs": [
                {
                    reply["token"]: reply["logprob"]
                    for reply in (logprob(token, place) for place in range(max(others, 1)))
                }
                for token in tokens
            ],
            "text_offset": [offset + len("".join(tokens[:place])) for place in range(len(tokens))],
        }


def read_prompts(prompt: Any) -> list[str]:
    """Read a text, a list of texts, token ids, or lists of token ids."""
    if isinstance(prompt, str):
        return [prompt]
    if isinstance(prompt, list) and prompt:
        if all(isinstance(part, int) for part in prompt):
            return [words_of(prompt)]
        return [found for part in prompt for found in read_prompts(part)]
    raise RefusedError("'prompt' must be a text, token ids, or a list of them")


class Embeddings:
    """POST /v1/embeddings: a vector that depends only on the text."""

    error = staticmethod(error)
    error_event = staticmethod(error_event)

    def __init__(self, cache: PromptCache):
        self._cache = cache

    def read(self, body: Mapping[str, Any], number_of_job: int) -> Job:
        texts = read_prompts(body.get("input"))
        plans = [Plan((), "stop", prompt_tokens=len(text.split())) for text in texts]
        whole_body = {**body, "stream": False}  # embeddings are not streamed
        return Job(whole_body, body["model"], plans, f"embd-{number_of_job}", detail={"texts": texts})

    def whole(self, job: Job) -> bytes:
        as_base64 = job.body.get("encoding_format") == "base64"
        data = []
        for index, text in enumerate(job.detail["texts"]):
            vector = embedding(text, number(job.body, "dimensions") or 8)
            packed = base64.b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode()
            data.append({"object": "embedding", "index": index, "embedding": packed if as_base64 else vector})
        used = {"prompt_tokens": job.prompt_tokens, "total_tokens": job.prompt_tokens}
        return orjson.dumps({"id": job.id, "object": "list", "model": job.model, "data": data, "usage": used})

    def frames(self, job: Job) -> Iterator[Frame]:
        raise RefusedError("embeddings are not streamed")


def embedding(text: str, dimensions: int) -> list[float]:
    """Multiples of 1/8 between -1 and 1, exact in FP32, which depend only on the text."""
    digest = hashlib.sha256(text.encode()).digest()
    return [(digest[place % len(digest)] % 17 - 8) / 8 for place in range(dimensions)]
