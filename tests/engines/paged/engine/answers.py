"""Requests to an engine and their replies."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from engines.paged.base.types import FinishReason, GenerateRequest, Output, SamplingParams, TokenLogprob
from engines.paged.engine import PagedEngine

_ids = itertools.count()


@dataclass
class Answer:
    """All choices of one request, in the order of the engine's outputs."""

    request: GenerateRequest
    outputs: list[Output] = field(default_factory=list)
    done: threading.Event = field(default_factory=threading.Event)
    first: threading.Event = field(default_factory=threading.Event)

    def __call__(self, output: Output) -> None:
        self.outputs.append(output)
        self.first.set()
        if output.is_final:
            self.done.set()

    def of(self, choice: int) -> list[Output]:
        return [output for output in self.outputs if output.choice == choice]

    def tokens(self, choice: int = 0) -> list[int]:
        return [token for output in self.of(choice) for token in output.token_ids]

    def text(self, choice: int = 0) -> str:
        return "".join(output.text for output in self.of(choice))

    def logprobs(self, choice: int = 0) -> list[TokenLogprob]:
        return [each for output in self.of(choice) for each in output.logprobs]

    def reason(self, choice: int = 0) -> FinishReason | None:
        return self.of(choice)[-1].finish_reason

    @property
    def error(self) -> str:
        return next((output.error for output in self.outputs if output.error), "")


def send(engine: PagedEngine, prompt: Iterable[int], **fields: Any) -> Answer:
    """Submit a prompt; fields are those of SamplingParams, and priority, deadline, adapter, cache_salt."""
    own = {name: fields.pop(name) for name in ("priority", "deadline", "adapter", "cache_salt") if name in fields}
    fields = {"temperature": 0.0, "ignore_eos": True, **fields}
    request = GenerateRequest(f"r{next(_ids)}", tuple(prompt), SamplingParams(**fields), **own)
    answer = Answer(request)
    engine.submit(request, answer)
    return answer


def finish(*answers: Answer) -> None:
    """Wait until all replies are complete."""
    for answer in answers:
        assert answer.done.wait(120), f"no end after {len(answer.outputs)} outputs"


def answer_of(engine: PagedEngine, prompt: Iterable[int], **fields: Any) -> Answer:
    """Send a request and wait for the complete reply."""
    answer = send(engine, prompt, **fields)
    finish(answer)
    return answer
