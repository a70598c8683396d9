"""A client of completions: requests over HTTP as event streams, and the arrival time of each token's event."""

import asyncio
import json
import time
from collections.abc import Mapping, Sequence
from typing import Any

from bench.llm_work import Answer, Arrivals, Request
from bench.openai_connections import AnswerReader
from bench.processes import BenchError

DONE = "[DONE]"
# A stream without an event for this long is stuck.
SILENCE_SECONDS = 300.0
READ_BYTES = 1 << 16


def ask(port: int, body: Mapping[str, Any], requests: Sequence[Request], texts: Sequence[str]) -> list[Answer]:
    """Send requests to /v1/completions, each on a connection of its own; `texts` are their prompts, and `body` the
    other fields for this server.

    Raises: BenchError for anything but a stream of tokens.
    """
    return asyncio.run(_Asking(port, body, requests, texts).run())


class _Asking:
    def __init__(self, port: int, body: Mapping[str, Any], requests: Sequence[Request], texts: Sequence[str]) -> None:
        self._port = port
        self._body = body
        self._requests = requests
        self._texts = texts
        self._answers = [Answer(0.0, [], text="") for _ in requests]
        self._arrivals = Arrivals(requests)
        self._tasks: asyncio.TaskGroup | None = None

    async def run(self) -> list[Answer]:
        try:
            async with asyncio.TaskGroup() as self._tasks:
                self._submit()
        except* (OSError, TimeoutError) as group:
            raise BenchError(f"the connection broke: {group.exceptions[0]!r}") from group
        except* BenchError as group:
            raise group.exceptions[0] from None
        return self._answers

    def _submit(self) -> None:
        assert self._tasks is not None
        for place in self._arrivals.due():
            self._tasks.create_task(self._stream(place))

    async def _stream(self, place: int) -> None:
        request, answer = self._requests[place], self._answers[place]
        body = {"prompt": self._texts[place], "max_tokens": request.max_tokens, "stream": True, **self._body}
        payload = json.dumps(body).encode()
        answer.submitted = time.perf_counter()
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        try:
            head = (
                f"POST /v1/completions HTTP/1.1\r\nhost: 127.0.0.1:{self._port}\r\n"
                f"content-type: application/json\r\ncontent-length: {len(payload)}\r\n\r\n"
            )
            writer.write(head.encode() + payload)
            answers, events, has_ended = AnswerReader(), Events(), False
            while not has_ended:
                async with asyncio.timeout(SILENCE_SECONDS):
                    data = await reader.read(READ_BYTES)
                if not data:
                    raise BenchError("the connection was closed in the middle of an answer")
                now = time.perf_counter()
                text, has_ended = answers.feed(data)
                for event in events.feed(text):
                    self._hear(place, event, now)
            self._arrivals.told(place, 0, has_ended=True)
        finally:
            writer.close()
        self._submit()

    def _hear(self, place: int, event: str, now: float) -> None:
        answer = self._answers[place]
        if event == DONE:
            return
        chunk = json.loads(event)
        if "error" in chunk:
            raise BenchError(f"request {place}: {chunk['error']}")
        # A token is a space and a word, so that spaces count tokens.
        text = "".join(choice.get("text") or "" for choice in chunk.get("choices", ()))
        answer.text = (answer.text or "") + text
        answer.times.extend([now] * text.count(" "))
        if usage := chunk.get("usage"):
            answer.prompt_tokens = usage["prompt_tokens"]
        if text:
            self._arrivals.told(place, text.count(" "), has_ended=False)
            self._submit()


class Events:
    """Extracts the data of server-sent events from bytes, however they are cut."""

    def __init__(self) -> None:
        self._pending = b""

    def feed(self, data: bytes) -> list[str]:
        *lines, self._pending = (self._pending + data).split(b"\n")
        return [line[5:].strip().decode() for line in lines if line.startswith(b"data:")]
