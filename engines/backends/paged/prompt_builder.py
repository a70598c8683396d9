"""From what a request asks to what the engine is given: tokens and parameters of sampling."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from engines.backends.paged.chat import Chat
from engines.backends.paged.request_parser import ParsedRequest
from engines.core.errors import invalid
from engines.paged.base.types import GenerateRequest, SamplingParams
from engines.paged.sampling.params_parser import read_default_params, read_params
from engines.paged.text.tokenizer import Tokenizer

# A longer text is first looked at in pieces of so many characters: to make tokens of megabytes takes half a minute and
# gigabytes, for a prompt that is refused.
_PIECE_CHARS = 1 << 16
# The engine ends an answer where the context is full.
_UNTIL_FULL = 1 << 30


class Prompting:
    """Of one model."""

    def __init__(self, tokenizer: Tokenizer, folder: Path, max_context: int) -> None:
        """What its folder recommends holds where a request is silent. `max_context` in tokens.

        Raises: EngineError where that is malformed.
        """
        self._tokenizer = tokenizer
        self._max_context = max_context
        self._defaults = read_default_params(folder)
        # A chat that ends after 16 tokens is no chat.
        self._chat_defaults = read_default_params(folder, SamplingParams(max_tokens=_UNTIL_FULL))

    def generate_request(self, id: str, asked: ParsedRequest, arrived: float) -> GenerateRequest:
        """`arrived` is of time.monotonic().

        Raises: EngineError for what is wrong with the prompt, or with a field.
        """
        is_chat = isinstance(asked.prompt, Chat)
        params = read_params(asked.fields, self._chat_defaults if is_chat else self._defaults)
        if "logprobs" in asked.told and params.logprobs is None:
            params = replace(params, logprobs=0)
        if "cumulative_logprob" in asked.told and params.logprobs is None and not params.beam_width:
            params = replace(params, logprobs=0)  # its sum is known where each is
        if "prompt_logprobs" in asked.told and params.prompt_logprobs is None:
            params = replace(params, prompt_logprobs=0)
        timeout = asked.timeout_seconds
        return GenerateRequest(
            id=id,
            prompt=tuple(self._tokens(asked)),
            params=params,
            priority=asked.priority,
            deadline=None if timeout is None else arrived + timeout,
            adapter=asked.adapter,
            cache_salt=asked.cache_salt,
        )

    def text_of(self, asked: ParsedRequest, request: GenerateRequest) -> str:
        """The prompt as text, for answers that repeat it."""
        return asked.prompt if isinstance(asked.prompt, str) else self._tokenizer.decode(request.prompt)

    def _tokens(self, asked: ParsedRequest) -> list[int] | tuple[int, ...]:
        prompt = asked.prompt
        if isinstance(prompt, str):
            return self._encoded(prompt, asked.adds_special_tokens)
        if isinstance(prompt, Chat):
            return self._encoded(self._rendered(prompt), False)
        return prompt

    def _encoded(self, text: str, adds_special_tokens: bool) -> list[int]:
        """Raises: EngineError for a text that is far too long, before all of it is read."""
        if len(text) > _PIECE_CHARS:
            # A cut makes a few tokens more than the whole text has: never as many again.
            left = 2 * self._max_context
            for start in range(0, len(text), _PIECE_CHARS):
                left -= len(self._tokenizer.encode(text[start : start + _PIECE_CHARS], add_special_tokens=False))
                if left < 0:
                    raise invalid(
                        f"the prompt has {len(text):,} characters, more than {2 * self._max_context} tokens, and the "
                        f"context holds {self._max_context}, the answer included: shorten the prompt, or serve with a "
                        "larger max_context"
                    )
        return self._tokenizer.encode(text, adds_special_tokens)

    def _rendered(self, chat: Chat) -> str:
        """A conversation as its template prints it; one that goes on ends with what has begun."""
        extra: dict[str, Any] = dict(chat.options)
        if reserved := sorted(extra.keys() & {"messages", "tools", "add_generation_prompt", "keep_bos"}):
            raise invalid(f"'chat_template_kwargs' may not have '{reserved[0]}', which the request says elsewhere")
        if not chat.continues:
            return self._tokenizer.render_chat(chat.messages, chat.tools, chat.adds_prompt, **extra)
        *before, last = chat.messages
        if last["role"] != "assistant" or not before:
            raise invalid("'continue_final_message' goes on with a last message of the assistant's, after others")
        return self._tokenizer.render_chat(before, chat.tools, True, **extra) + str(last["content"])
