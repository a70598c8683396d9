"""Replies of OpenAI's responses, read from engines and written for clients.

Source: OpenAI API reference, "Responses" and "Streaming events".
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import orjson

from gateway.protocol.conversion.errors import read_error
from gateway.protocol.llm.block_reply_writer import BlockReplyWriter, ReplyBlock
from gateway.protocol.llm.canonical import (
    EngineFailed,
    Event,
    Finished,
    Generation,
    ReasoningDelta,
    Started,
    TextDelta,
    TokenUsage,
    ToolCallDelta,
)
from gateway.protocol.llm.errors import openai_error
from gateway.protocol.llm.json_fields import Fields, misunderstood, text_in
from gateway.protocol.llm.reply_reader import JsonReplyReader
from gateway.protocol.llm.responses_request import choice_of, format_of, tool_fields
from gateway.protocol.llm.usage import read_usage

# Of failures, which have no status of their own.
_STATUSES = {"rate_limit_exceeded": 429, "invalid_prompt": 400, "context_length_exceeded": 400}
_IMAGES_FAULT = 400  # all other codes but server_error say what is wrong with an image


def _failed(error: Fields) -> EngineFailed:
    message, code = read_error(orjson.dumps({"error": error}))
    return EngineFailed(message, _STATUSES.get(code, _IMAGES_FAULT if "image" in code else 500), code)


def _logprob(fields: Mapping[str, Any]) -> Fields:
    return {"token": text_in(fields, "token"), "logprob": fields.get("logprob"), "bytes": fields.get("bytes")}


def _each(write: Callable[[Mapping[str, Any]], Fields], logprobs: Sequence[Mapping[str, Any]]) -> list[Fields]:
    return [{**write(each), "top_logprobs": [*map(write, each.get("top_logprobs") or ())]} for each in logprobs]


class ResponsesReplyReader(JsonReplyReader):
    """Reads one reply."""

    def __init__(self) -> None:
        super().__init__()
        self._calls: dict[int, int] = {}  # index of an engine's item -> position of the call
        self._silent: set[int] = set()  # calls of which no argument has come

    def _read_whole(self, fields: Fields, events: list[Event]) -> None:
        error = fields.get("error")
        if error:
            events.append(_failed(error if isinstance(error, dict) else {"message": error}))
        elif fields.get("status") in ("failed", "cancelled"):
            events.append(EngineFailed(f"the engine's response is {fields['status']}", 500, "server_error"))
        elif not isinstance(fields.get("output"), list):
            raise misunderstood("a response has 'output'")
        else:
            events.append(_started(fields))
            for at, item in enumerate(fields["output"]):
                self._item(at, item, events)
            self._close(fields, events)

    def _read(self, fields: Fields, events: list[Event]) -> None:
        match fields.get("type"):
            case "response.output_text.delta":
                logprobs = fields.get("logprobs")
                events.append(TextDelta(text_in(fields, "delta"), 0, _each(_logprob, logprobs) if logprobs else None))
            case "response.refusal.delta":
                events.append(TextDelta(text_in(fields, "delta")))
            case "response.reasoning_text.delta" | "response.reasoning_summary_text.delta":
                events.append(ReasoningDelta(text_in(fields, "delta")))
            case "response.function_call_arguments.delta":
                self._arguments(fields.get("output_index", 0), text_in(fields, "delta"), events)
            case "response.output_item.added":
                self._added(fields.get("output_index", 0), fields.get("item") or {}, events)
            case "response.output_item.done":
                self._finish_item(fields.get("output_index", 0), fields.get("item") or {}, events)
            case "response.created":
                events.append(_started(fields.get("response") or {}))
            case "response.completed" | "response.incomplete":
                self._close(fields.get("response") or {}, events)
            case "response.failed" | "error":
                self._is_over = True
                error = (fields.get("response") or fields).get("error")
                events.append(_failed(error if isinstance(error, dict) else {**fields, "error": None}))

    def _added(self, index: int, item: Fields, events: list[Event]) -> None:
        if item.get("type") == "function_call" and index not in self._calls:
            self._calls[index] = len(self._calls)
            self._silent.add(index)
            id = text_in(item, "call_id") or text_in(item, "id")
            events.append(ToolCallDelta(self._calls[index], id, text_in(item, "name")))

    def _arguments(self, index: int, arguments: str, events: list[Event]) -> None:
        if arguments and index in self._calls:
            self._silent.discard(index)
            events.append(ToolCallDelta(self._calls[index], arguments=arguments))

    def _finish_item(self, index: int, item: Fields, events: list[Event]) -> None:
        """What an item says only at its end."""
        if item.get("type") == "function_call":
            self._added(index, item, events)
            if index in self._silent:
                self._arguments(index, text_in(item, "arguments") or "{}", events)
        elif item.get("type") == "reasoning" and (signature := text_in(item, "encrypted_content")):
            events.append(ReasoningDelta("", signature=signature))

    def _item(self, index: int, item: Fields, events: list[Event]) -> None:
        """All that an item of a whole response says."""
        if item.get("type") == "message":
            for part in item.get("content") or ():
                text = text_in(part, "refusal") or text_in(part, "text")
                events.append(TextDelta(text, 0, _each(_logprob, part.get("logprobs") or ()) or None))
        elif item.get("type") == "reasoning":
            parts = item.get("content") or item.get("summary") or ()
            text = "\n\n".join([text_in(part, "text") for part in parts])
            if text:
                events.append(ReasoningDelta(text))
        self._finish_item(index, item, events)

    def _close(self, response: Fields, events: list[Event]) -> None:
        self._is_over = True
        reason = (response.get("incomplete_details") or {}).get("reason")
        if reason is not None or response.get("status") == "incomplete":
            events.append(Finished("content_filter" if reason == "content_filter" else "length"))
        else:
            events.append(Finished("tool_calls" if self._calls else "stop"))
        used = read_usage(response.get("usage"))
        if used is not None:
            events.append(used)


def _started(response: Fields) -> Started:
    return Started(text_in(response, "id"), text_in(response, "model"), int(response.get("created_at") or 0))


class OutputItem(ReplyBlock):
    """An item of the output: what the model said (message), thought (reasoning) or called (function_call)."""

    events = ""  # begins the types of the events of its text
    delta_end = b',"sequence_number":'  # what stands between a delta and the sequence number
    place: Fields = {"content_index": 0}  # noqa: RUF012

    def __init__(self, id: str, index: int) -> None:
        super().__init__()
        self.id, self.index = id, index
        self.status = "in_progress"
        self.place = {"item_id": id, "output_index": index, **self.place}
        delta = {"type": f"{self.events}.delta", **self.place, "delta": ""}
        self.prefix = b"event: %b.delta\ndata: %b" % (self.events.encode(), orjson.dumps(delta).removesuffix(b'""}'))

    @property
    @abstractmethod
    def fields(self) -> Fields:
        """The item as it stands."""

    @abstractmethod
    def written(self) -> Fields:
        """What its last event but those of the item and the part says."""

    def part(self) -> Fields | None:
        """The part of its content that holds the text; None where the item itself does."""
        return None

    def beginning(self) -> list[Fields]:
        return [self._item("added"), *self._part("added")]

    def ending(self, is_complete: bool) -> list[Fields]:
        part = self._part("done")
        self.status = "completed" if is_complete else "incomplete"
        return [{"type": f"{self.events}.done", **self.place, **self.written()}, *part, self._item("done")]

    def _item(self, what: str) -> Fields:
        return {"type": f"response.output_item.{what}", "output_index": self.index, "item": self.fields}

    def _part(self, what: str) -> list[Fields]:
        part = self.part()
        return [{"type": f"response.content_part.{what}", **self.place, "part": part}] if part else []


class MessageItem(OutputItem):
    events = "response.output_text"
    delta_end = b',"logprobs":[],"sequence_number":'

    def __init__(self, id: str, index: int) -> None:
        super().__init__(id, index)
        self.logprobs: list[Fields] = []

    @property
    def fields(self) -> Fields:
        has_begun = self.texts or self.status != "in_progress"
        content = [self.part()] if has_begun else []
        return {"id": self.id, "type": "message", "status": self.status, "role": "assistant", "content": content}

    def part(self) -> Fields:
        return {"type": "output_text", "text": self.text, "annotations": [], "logprobs": [*self.logprobs]}

    def written(self) -> Fields:
        return {"text": self.text, "logprobs": self.logprobs}


class ReasoningItem(OutputItem):
    """Without text where only its provider can read what it proves by `signature`."""

    events = "response.reasoning_text"

    def __init__(self, id: str, index: int, signature: str) -> None:
        super().__init__(id, index)
        self.signature = signature

    @property
    def fields(self) -> Fields:
        content = [self.part()] if self.texts else []
        item = {"id": self.id, "type": "reasoning", "status": self.status, "summary": [], "content": content}
        return item | ({"encrypted_content": self.signature} if self.signature else {})

    def part(self) -> Fields:
        return {"type": "reasoning_text", "text": self.text}

    def written(self) -> Fields:
        return {"text": self.text}

    def beginning(self) -> list[Fields]:
        return [self._item("added")] if self.signature else super().beginning()

    def ending(self, is_complete: bool) -> list[Fields]:
        events = super().ending(is_complete)
        return events if self.texts else events[-1:]


class CallItem(OutputItem):
    events = "response.function_call_arguments"
    place: Fields = {}  # noqa: RUF012

    def __init__(self, id: str, index: int, call_id: str, name: str) -> None:
        super().__init__(id, index)
        self.call_id, self.name = call_id, name

    @property
    def fields(self) -> Fields:
        call = {"call_id": self.call_id, "name": self.name, "arguments": self.text}
        return {"id": self.id, "type": "function_call", "status": self.status, **call}

    def written(self) -> Fields:
        return {"name": self.name, "arguments": self.text}


# The reasons for which a response is incomplete, of those for which a choice ends.
_INCOMPLETE = {"length": "max_output_tokens", "content_filter": "content_filter"}
# The codes of OpenAI's that a failed response may have, of those of others.
_CODES = {"rate_limit_error": "rate_limit_exceeded", "rate_limit_exceeded": "rate_limit_exceeded"}


class ResponsesReplyWriter(BlockReplyWriter[OutputItem]):
    """Writes one reply."""

    _has_logprobs = True
    _num_events = 0

    def _write(self, fields: Fields, out: list[bytes]) -> None:
        super()._write({**fields, "sequence_number": self._num_events}, out)
        self._num_events += 1

    def _write_more(self, block: OutputItem, text: str, out: list[bytes]) -> None:
        block.texts.append(text)
        number = self._num_events
        self._num_events = number + 1
        out.append(b"%b%b%b%d}\n\n" % (block.prefix, orjson.dumps(text), block.delta_end, number))

    def _write_text(self, block: OutputItem, event: TextDelta, out: list[bytes]) -> None:
        if event.logprobs and isinstance(block, MessageItem):
            logprobs = _each(_logprob_with_bytes, event.logprobs)
            block.logprobs += logprobs
            block.texts.append(event.text)
            delta = {"type": f"{block.events}.delta", **block.place, "delta": event.text, "logprobs": logprobs}
            self._write(delta, out)
        else:
            self._write_more(block, event.text, out)

    def _new_block(self, event: Event) -> OutputItem:
        index = len(self._blocks)
        place = f"{self._id.removeprefix('resp_')}_{index}"
        if isinstance(event, ToolCallDelta):
            return CallItem(f"fc_{place}", index, event.id or f"call_{self._id}_{event.position}", event.name)
        if isinstance(event, ReasoningDelta):
            return ReasoningItem(f"rs_{place}", index, "" if event.text else event.signature)
        return MessageItem(f"msg_{place}", index)

    def _sign(self, block: OutputItem, signature: str, out: list[bytes]) -> None:
        assert isinstance(block, ReasoningItem)
        block.signature = signature

    def _write_start(self, out: list[bytes]) -> None:
        for kind in ("response.created", "response.in_progress"):
            self._write({"type": kind, "response": self._response("in_progress")}, out)

    def _write_end(self, out: list[bytes]) -> None:
        response = self._reply()
        self._write({"type": f"response.{response['status']}", "response": response}, out)

    def _fail(self, failure: EngineFailed, out: list[bytes]) -> None:
        """Writes `error`, at which clients raise, and `response.failed` where the response has begun."""
        self._is_over = True
        if self._open is not None:
            self._open.status = "incomplete"
        self._open = self._open_kind = None
        # OpenAI's documentation has `code` and `message` in the event, its servers have `error`: clients raise at that.
        written = {"code": failure.code or None, "message": failure.message, "param": None}
        self._write({"type": "error", **written, "error": {"type": "server_error", **written}}, out)
        if self._has_started:
            error = {"code": _CODES.get(failure.code, "server_error"), "message": failure.message}
            self._write({"type": "response.failed", "response": {**self._response("failed"), "error": error}}, out)

    def _error(self, failure: EngineFailed) -> bytes:
        return openai_error(failure.message, failure.status, failure.code)

    def _reply(self) -> Fields:
        is_incomplete = self._finished is not None and self._finished.reason in _INCOMPLETE
        return self._response("incomplete" if is_incomplete else "completed")

    def _response(self, status: str) -> Fields:
        reason = _INCOMPLETE[self._finished.reason] if self._finished and status == "incomplete" else None
        return {
            "id": self._id,
            "object": "response",
            "created_at": self._created,
            "status": status,
            "error": None,
            "incomplete_details": {"reason": reason} if reason else None,
            "model": self._model,
            "output": [item.fields for item in self._blocks],
            **_request_fields(self._generation),
            "usage": _usage(self._used) if self._used is not None else None,
        }


def _logprob_with_bytes(logprob: Mapping[str, Any]) -> Fields:
    data, token = logprob.get("bytes"), logprob.get("token") or ""
    return {
        "token": token,
        "logprob": logprob.get("logprob"),
        "bytes": list(token.encode()) if data is None else data,
    }


def _usage(used: TokenUsage) -> Fields:
    usage = {
        "input_tokens": used.prompt,
        "input_tokens_details": {"cached_tokens": used.cached, "cache_write_tokens": 0},
        "output_tokens": used.completion,
        "output_tokens_details": {"reasoning_tokens": used.reasoning},
        "total_tokens": used.prompt + used.completion,
    }
    return usage | {"estimated": True} if used.is_estimated else usage


def _request_fields(generation: Generation) -> Fields:
    """The fields of a response that tell its request. Nothing is ever stored."""
    options = generation.options
    first = generation.messages[0] if generation.messages else None
    text: Fields = {"format": format_of(options.get("response_format") or {"type": "text"})}
    if "verbosity" in options:
        text["verbosity"] = options["verbosity"]
    return {
        "background": False,
        "instructions": first.text if first is not None and first.role == "system" else None,
        "max_output_tokens": options.get("max_tokens"),
        "metadata": options.get("metadata") or {},
        "parallel_tool_calls": options.get("parallel_tool_calls", True),
        "previous_response_id": None,
        "reasoning": {"effort": options.get("reasoning_effort"), "summary": None},
        "store": False,
        "temperature": options.get("temperature"),
        "text": text,
        "tool_choice": choice_of(options.get("tool_choice", "auto")),
        "tools": [tool_fields(tool) for tool in generation.tools],
        "top_logprobs": options.get("logprobs", 0),
        "top_p": options.get("top_p"),
        "truncation": "disabled",
        "user": options.get("user"),
    }
