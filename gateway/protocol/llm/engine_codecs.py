"""Requests for text as engines take them: one `EngineCodec` for each API that engines have."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import orjson

from gateway.protocol.conversion.errors import unsupported
from gateway.protocol.conversion.sse import SseReader, event_of
from gateway.protocol.llm.api_codecs import ApiCodec
from gateway.protocol.llm.canonical import Event, Generation
from gateway.protocol.llm.generate_engine_reply import GenerateReplyReader
from gateway.protocol.llm.generate_engine_request import GenerateSignature
from gateway.protocol.llm.generate_engine_request import write_request as write_generate
from gateway.protocol.llm.json_mode import JsonToolReader, json_tool_of
from gateway.protocol.llm.templates import Template
from gateway.protocol.llm.translation import ReplyReader
from gateway.protocol.mlserver.bodies import error_of, generate_of_inference, inference_of_generate
from gateway.protocol.operations import LlmApi, model_path
from gateway.protocol.translator import EngineRequest, Reply

# What vLLM and SGLang are told by to go on with the last message; llama.cpp goes on where it is the assistant's.
_CONTINUES = {"continue_final_message": True, "add_generation_prompt": False}


@dataclass(frozen=True, slots=True)
class OpenAICodec:
    """An engine that speaks one of OpenAI's APIs, or Anthropic's."""

    api: LlmApi
    codec: ApiCodec
    base_path: str
    model: str
    drop: bool

    def request(self, generation: Generation, *, continues: bool) -> EngineRequest:
        body, lost = self.codec.write_request(generation, model=self.model, drop=self.drop)
        if continues and self.api is LlmApi.CHAT:
            body = orjson.dumps(orjson.loads(body) | _CONTINUES)
        return EngineRequest(f"{self.base_path}/{self.codec.path}", body, api=self.api, dropped=tuple(lost))

    def reader(self, generation: Generation) -> ReplyReader:
        reader = self.codec.reply_reader()
        json_tool = json_tool_of(generation) if self.api is LlmApi.MESSAGES else None
        return reader if json_tool is None else JsonToolReader(reader, json_tool.name)


@dataclass(frozen=True, slots=True)
class PromptCodec:
    """An engine that takes a prompt alone: messages become one by the engine's chat template."""

    inner: OpenAICodec | GenerateCodec | MLServerCodec
    template: Template | None
    strftime: Callable[[str], str]  # the clock of templates that print the time
    engine: str

    def request(self, generation: Generation, *, continues: bool) -> EngineRequest:
        if generation.prompt is None:
            generation = self._rendered(generation, continues)
        return self.inner.request(generation, continues=False)

    def reader(self, generation: Generation) -> ReplyReader:
        repeats_prompt = isinstance(self.inner, GenerateCodec) and self.inner.signature.repeats_prompt
        if generation.prompt is None and repeats_prompt and not generation.stream:
            generation = self._rendered(generation, continues=False)
        return self.inner.reader(generation)

    def _rendered(self, generation: Generation, continues: bool) -> Generation:
        """With the prompt that the messages become."""
        if self.template is None:
            what = f"engine '{self.engine}' takes a prompt, not messages: give it a 'chat_template', or ask for "
            raise unsupported(what + "/v1/completions")
        messages, tools, options = generation.messages, generation.tools, generation.options
        choice = options.get("tool_choice")
        if choice in ("auto", "none"):  # a prompt says these by having tools, or none
            options = {name: value for name, value in options.items() if name != "tool_choice"}
            tools = () if choice == "none" else tools
        begun = messages[-1].text if continues else ""
        complete = messages[:-1] if continues else messages
        prompt = self.template.render(complete, tools, strftime_now=self.strftime) + begun
        # What the template has written is not to be told again; media stay, for engines that take them beside.
        return replace(generation, prompt=prompt, tools=() if self.template.takes_tools else tools, options=options)


@dataclass(frozen=True, slots=True)
class GenerateCodec:
    """A V2 server, asked by generate or generate_stream."""

    model: str
    version: str
    signature: GenerateSignature
    drop: bool

    def request(self, generation: Generation, *, continues: bool) -> EngineRequest:
        suffix, body, lost = write_generate(generation, model=self.model, signature=self.signature, drop=self.drop)
        path = f"{model_path(self.model, self.version)}/{suffix}"
        return EngineRequest(path, body, api=LlmApi.GENERATE, dropped=tuple(lost))

    def reader(self, generation: Generation) -> ReplyReader:
        return GenerateReplyReader(generation, self.signature)


@dataclass(frozen=True, slots=True)
class MLServerCodec:
    """An MLServer, whose generate takes infer's JSON and answers it."""

    inner: GenerateCodec

    def request(self, generation: Generation, *, continues: bool) -> EngineRequest:
        engine_request = self.inner.request(generation, continues=continues)
        tensors = self.inner.signature.inputs | {self.inner.signature.text_input}
        parsed = orjson.loads(engine_request.body)
        body = {name: [value] if name in tensors else value for name, value in parsed.items()}
        return replace(engine_request, body=inference_of_generate(orjson.dumps(body))[0])

    def reader(self, generation: Generation) -> ReplyReader:
        return _InferenceReader(self.inner.reader(generation))


class _InferenceReader:
    """Reads infer responses as the generate replies that they stand for."""

    def __init__(self, inner: ReplyReader) -> None:
        self._inner = inner
        self._events = SseReader()

    def feed(self, data: bytes) -> list[Event]:
        parsed = [event_of(generate_of_inference(event, is_text=True)) for event in self._events.feed(data)]
        return self._inner.feed(b"".join(parsed)) if parsed else []

    def end(self) -> list[Event]:
        return [] if self._events.num_waiting else self._inner.end()

    def whole(self, status: int, body: bytes) -> list[Event]:
        if status >= 400:
            error = error_of(Reply(status, body))
            return self._inner.whole(error.status, error.body)
        return self._inner.whole(status, generate_of_inference(body, is_text=True))
