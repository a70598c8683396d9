"""Builds the engine's request: tokens of the prompt, and sampling parameters."""

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

# A longer text is tokenized in parts of this size first: megabytes take half a minute and gigabytes, for a prompt that
# is refused.
_PIECE_CHARS = 1 << 16
# The engine ends an answer where the context is full.
_UNTIL_FULL = 1 << 30


class PromptBuilder:
    """Of one model."""

    def __init__(self, tokenizer: Tokenizer, folder: Path, max_context: int) -> None:
        """`folder` has the defaults of sampling. `max_context` in tokens.

        Raises: EngineError where they are malformed.
        """
        self._tokenizer = tokenizer
        self._max_context = max_context
        self._defaults = read_default_params(folder)
        # vLLM's and OpenAI's default of 16 tokens is for completions.
        self._chat_defaults = read_default_params(folder, SamplingParams(max_tokens=_UNTIL_FULL))

    def generate_request(self, id: str, parsed: ParsedRequest, arrived: float) -> GenerateRequest:
        """`arrived` is of time.monotonic().

        Raises: EngineError for an invalid prompt or field.
        """
        is_chat = isinstance(parsed.prompt, Chat)
        params = read_params(parsed.fields, self._chat_defaults if is_chat else self._defaults)
        if "logprobs" in parsed.outputs and params.logprobs is None:
            params = replace(params, logprobs=0)
        if "cumulative_logprob" in parsed.outputs and params.logprobs is None and not params.beam_width:
            params = replace(params, logprobs=0)  # the sum needs each token's
        if "prompt_logprobs" in parsed.outputs and params.prompt_logprobs is None:
            params = replace(params, prompt_logprobs=0)
        timeout = parsed.timeout_seconds
        return GenerateRequest(
            id=id,
            prompt=tuple(self._tokens(parsed)),
            params=params,
            priority=parsed.priority,
            deadline=None if timeout is None else arrived + timeout,
            adapter=parsed.adapter,
            cache_salt=parsed.cache_salt,
        )

    def text_of(self, parsed: ParsedRequest, request: GenerateRequest) -> str:
        """The prompt as text, for responses that repeat it."""
        return parsed.prompt if isinstance(parsed.prompt, str) else self._tokenizer.decode(request.prompt)

    def _tokens(self, parsed: ParsedRequest) -> list[int] | tuple[int, ...]:
        prompt = parsed.prompt
        if isinstance(prompt, str):
            return self._encoded(prompt, parsed.adds_special_tokens)
        if isinstance(prompt, Chat):
            return self._encoded(self._rendered(prompt), False)
        return prompt

    def _encoded(self, text: str, adds_special_tokens: bool) -> list[int]:
        """Raises: EngineError for a text far beyond the context, before all of it is read."""
        if len(text) > _PIECE_CHARS:
            # Cuts add a few tokens: never as many again.
            remaining = 2 * self._max_context
            for start in range(0, len(text), _PIECE_CHARS):
                remaining -= len(self._tokenizer.encode(text[start : start + _PIECE_CHARS], add_special_tokens=False))
                if remaining < 0:
                    raise invalid(
                        f"the prompt has {len(text):,} characters, more than {2 * self._max_context} tokens, and the "
                        f"context holds {self._max_context}, the answer included: shorten the prompt, or serve with a "
                        "larger max_context"
                    )
        return self._tokenizer.encode(text, adds_special_tokens)

    def _rendered(self, chat: Chat) -> str:
        """A conversation in its template's form; with `continues` it ends with the last message's text."""
        extra: dict[str, Any] = dict(chat.options)
        if reserved := sorted(extra.keys() & {"messages", "tools", "add_generation_prompt", "keep_bos"}):
            raise invalid(f"'chat_template_kwargs' may not have '{reserved[0]}', which the request says elsewhere")
        if not chat.continues:
            return self._tokenizer.render_chat(chat.messages, chat.tools, chat.adds_prompt, **extra)
        *before, last = chat.messages
        if last["role"] != "assistant" or not before:
            raise invalid("'continue_final_message' goes on with a last message of the assistant's, after others")
        return self._tokenizer.render_chat(before, chat.tools, True, **extra) + str(last["content"])
