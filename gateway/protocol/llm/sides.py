"""How an engine is asked for text: one `EngineSide` for each dialect that engines speak."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import orjson

from gateway.protocol.conversion.sse import SseReader, event_of
from gateway.protocol.errors import ErrorKind, GatewayError
from gateway.protocol.llm.generate_engine_reply import GenerateReplyReader
from gateway.protocol.llm.generate_engine_request import write_request as write_generate
from gateway.protocol.llm.generate_flavours import Flavour
from gateway.protocol.llm.translation import ReplyReader
from gateway.protocol.llm.values import Dialect, Event, Generation
from gateway.protocol.mlserver.bodies import error_of, generate_of_inference, inference_of_generate
from gateway.protocol.operations import model_path
from gateway.protocol.translating import EngineRequest, Reply

WriteRequest = Callable[..., tuple[bytes, list[str]]]

# What vLLM and SGLang are told by to go on with the last message; llama.cpp goes on where it is the assistant's.
_CONTINUES = {"continue_final_message": True, "add_generation_prompt": False}


@dataclass(frozen=True, slots=True)
class OpenAISide:
    """An engine that speaks OpenAI's API, or Anthropic's, in one of its dialects."""

    dialect: Dialect
    path: str
    model: str
    drop: bool
    write: WriteRequest
    make_reader: Callable[[], ReplyReader]

    def request(self, generation: Generation, *, continues: bool) -> EngineRequest:
        """See `EngineSide`."""
        body, lost = self.write(generation, model=self.model, drop=self.drop)
        if continues and self.dialect is Dialect.CHAT:
            body = orjson.dumps(orjson.loads(body) | _CONTINUES)
        return EngineRequest(self.path, body, dialect=self.dialect, dropped=tuple(lost))

    def reader(self, generation: Generation) -> ReplyReader:
        return self.make_reader()


@dataclass(frozen=True, slots=True)
class PromptSide:
    """An engine that takes a prompt alone: messages become one by the engine's chat template."""

    inner: OpenAISide | GenerateSide | MLServerSide
    render: Callable[[Generation, bool], str] | None
    engine: str

    def request(self, generation: Generation, *, continues: bool) -> EngineRequest:
        """See `EngineSide`."""
        if generation.prompt is None:
            prompt = self._prompt(generation, continues)
            # What the template has written is not to be told again; media stay, for engines that take them beside.
            generation = replace(generation, prompt=prompt, tools=(), options=_without_tools(generation))
        return self.inner.request(generation, continues=False)

    def reader(self, generation: Generation) -> ReplyReader:
        if generation.prompt is None and self._repeats_prompt and not generation.stream:
            generation = replace(generation, prompt=self._prompt(generation, continues=False))
        return self.inner.reader(generation)

    @property
    def _repeats_prompt(self) -> bool:
        return isinstance(self.inner, GenerateSide) and self.inner.flavour.repeats_prompt

    def _prompt(self, generation: Generation, continues: bool) -> str:
        if self.render is None:
            what = (
                f"engine '{self.engine}' takes a prompt, not messages: give it a 'chat_template', or ask for "
                "/v1/completions"
            )
            raise GatewayError(ErrorKind.UNSUPPORTED, what)
        return self.render(generation, continues)


@dataclass(frozen=True, slots=True)
class GenerateSide:
    """A V2 server, asked by generate or generate_stream."""

    model: str
    version: str
    flavour: Flavour
    drop: bool

    def request(self, generation: Generation, *, continues: bool) -> EngineRequest:
        """See `EngineSide`."""
        suffix, body, lost = write_generate(generation, model=self.model, flavour=self.flavour, drop=self.drop)
        path = f"{model_path(self.model, self.version)}/{suffix}"
        return EngineRequest(path, body, dialect=Dialect.GENERATE, dropped=tuple(lost))

    def reader(self, generation: Generation) -> ReplyReader:
        return GenerateReplyReader(generation, self.flavour)


@dataclass(frozen=True, slots=True)
class MLServerSide:
    """An MLServer, whose generate takes infer's JSON and answers it."""

    inner: GenerateSide

    def request(self, generation: Generation, *, continues: bool) -> EngineRequest:
        """See `EngineSide`."""
        asked = self.inner.request(generation, continues=continues)
        tensors = self.inner.flavour.inputs | {self.inner.flavour.text_input}
        told = orjson.loads(asked.body)
        body = {name: [value] if name in tensors else value for name, value in told.items()}
        return replace(asked, body=inference_of_generate(orjson.dumps(body))[0])

    def reader(self, generation: Generation) -> ReplyReader:
        return _InferenceReader(self.inner.reader(generation))


class _InferenceReader:
    """Reads infer responses as the generate replies that they stand for."""

    def __init__(self, inner: ReplyReader) -> None:
        self._inner = inner
        self._events = SseReader()

    def feed(self, data: bytes) -> list[Event]:
        told = [event_of(generate_of_inference(event, is_text=True)) for event in self._events.feed(data)]
        return self._inner.feed(b"".join(told)) if told else []

    def end(self) -> list[Event]:
        return [] if self._events.num_waiting else self._inner.end()

    def whole(self, status: int, body: bytes) -> list[Event]:
        if status >= 400:
            error = error_of(Reply(status, body))
            return self._inner.whole(error.status, error.body)
        return self._inner.whole(status, generate_of_inference(body, is_text=True))


def _without_tools(generation: Generation) -> dict[str, object]:
    return {name: value for name, value in generation.options.items() if name != "tool_choice"}
