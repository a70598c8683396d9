"""The tokens of a request's prompt, as its engine makes them, and where its byte blocks end among them.

Used off the request's path: tokenizing takes about a millisecond per thousand tokens.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_left
from pathlib import Path
from typing import Any

from gateway.protocol.errors import GatewayError
from gateway.protocol.llm.api_codecs import API_CODECS
from gateway.protocol.llm.canonical import Generation, Media
from gateway.protocol.llm.templates import Template, read_template
from gateway.protocol.operations import LlmApi
from gateway.upstream.cached_blocks import TokenizedPrompt
from gateway.upstream.prefix_index import checksums_of

# Strings of a JSON text: those of a prompt are found again in what the template prints. One without an end reaches to
# the end of the text: if it were none, its escaped quotes would be tried one after another.
_STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z)', re.DOTALL)
_LEAST_ANCHOR = 8  # bytes; shorter strings, such as roles, stand in a prompt many times
_MAX_MISSES = 64  # strings that the text lacks, until no more are looked for
# Characters of a text for each byte that is compared: tools and escapes stand before what they belong to.
_TEXT_PER_BYTE = 4
_MAX_TOKEN = 1 << 31
# The key that only one API has, in the order in which they are looked for.
_APIS = (("prompt", LlmApi.COMPLETIONS), ("system", LlmApi.MESSAGES), ("messages", LlmApi.CHAT))


class PromptTokenizer:
    """Of one model; not for several threads at once."""

    def __init__(self, folder: Path, block_bytes: int, max_bytes: int) -> None:
        """`folder` is the model's, with tokenizer.json and, for chats, its template.

        Raises: ImportError where `tokenizers` is missing; OSError, ValueError where a file is missing or invalid.
        """
        import tokenizers

        path = folder / "tokenizer.json"
        text = path.read_text("utf-8")
        try:
            self._backend: Any = tokenizers.Tokenizer.from_str(text)
        except Exception as error:  # the library raises nothing narrower
            raise ValueError(f"{path} is no tokenizer of the `tokenizers` library: {error}") from None
        self._backend.no_padding()
        self._backend.no_truncation()
        self._template = _template_of(folder)
        self._block_bytes = block_bytes
        self._max_bytes = max_bytes

    def tokenize(self, body: bytes, start: int) -> TokenizedPrompt | None:
        """The prompt of a request's body, in which it begins at `start`; None where its tokens are not known: a list of
        prompts, an image, an API that is not followed, a chat without a template.

        Raises: GatewayError, ValueError for what the engine refuses, too.
        """
        fields = json.loads(body)
        if not isinstance(fields, dict):
            return None
        api = next((api for key, api in _APIS if key in fields), None)
        if api is None or (api is LlmApi.COMPLETIONS and not _is_one_prompt(fields["prompt"])):
            return None
        generation = API_CODECS[api].read_request(body)
        data = body[start : start + self._max_bytes]
        checksums = checksums_of(data, self._block_bytes, self._max_bytes)
        if generation.prompt is not None and not isinstance(generation.prompt, str):
            ids = list(generation.prompt)
            if not all(0 <= each < _MAX_TOKEN for each in ids):
                raise ValueError("the prompt has numbers that are no token ids")
            counts = [len(ids) * (place + 1) // max(1, len(checksums)) for place in range(len(checksums))]
        else:
            text = generation.prompt if generation.prompt is not None else self._rendered(generation)
            if text is None:
                return None
            text = text[: _TEXT_PER_BYTE * self._max_bytes]
            # A prompt is encoded with the tokens that begin a text; a template prints them itself
            try:
                encoded = self._backend.encode(text, add_special_tokens=generation.prompt is not None)
            except TypeError:
                raise ValueError("the prompt has halves of surrogate pairs") from None
            ids = encoded.ids
            ends = _ends_in(text, data, self._block_bytes, len(checksums))
            starts = [begin for begin, _ in encoded.offsets]
            counts = [bisect_left(starts, end) for end in ends]
        return TokenizedPrompt(generation.model, ids, list(zip(checksums, counts, strict=True)))

    def _rendered(self, generation: Generation) -> str | None:
        if self._template is None or any(
            isinstance(part, Media) for message in generation.messages for part in message.parts
        ):
            return None
        options = generation.options
        tools = generation.tools if options.get("tool_choice", "auto") != "none" else ()
        extra = options.get("chat_template_kwargs")
        try:
            return self._template.render(
                generation.messages,
                tools,
                bool(options.get("add_generation_prompt", True)),
                keep_bos=True,
                **(extra if isinstance(extra, dict) else {}),
            )
        except (GatewayError, TypeError):
            return None


def _is_one_prompt(prompt: Any) -> bool:
    return isinstance(prompt, str) or (isinstance(prompt, list) and all(type(each) is int for each in prompt))


def _ends_in(text: str, data: bytes, block_bytes: int, num_blocks: int) -> list[int]:
    """How many characters of the text have come where each byte block of the JSON ends.

    Each long string of the JSON is looked for in the text, behind the one before; inside of a string, bytes and
    characters go in step. A block that ends between two strings ends with the first one.
    """
    anchors: list[tuple[int, int, int, int]] = []  # begin and end in the JSON, begin and length in the text
    at = num_misses = 0
    for match in _STRING.finditer(data + b'"'):  # the last string may be cut off
        begin, end = match.span()
        if end - begin < _LEAST_ANCHOR + 2:
            continue
        try:
            string = json.loads(match[0])
        except ValueError:  # cut inside of an escape
            string = match[0][1:-1].decode("utf-8", "ignore").rstrip("\\")
        found = text.find(string, at)
        if found < 0:
            num_misses += 1
            if num_misses == _MAX_MISSES:
                break
        else:
            anchors.append((begin, end, found, len(string)))
            at = found + len(string)
    ends = []
    place, chars = 0, 0
    for number in range(1, num_blocks + 1):
        boundary = number * block_bytes
        while place < len(anchors) and anchors[place][0] < boundary:
            begin, end, found, length = anchors[place]
            chars = found + length * min(boundary - begin, end - begin) // (end - begin)
            if end > boundary:
                break
            place += 1
        ends.append(chars)
    return ends


def _template_of(folder: Path) -> Template | None:
    """The model's chat template, as transformers finds it: the file comes before the tokenizer's configuration."""
    config, file = folder / "tokenizer_config.json", folder / "chat_template.jinja"
    text = config.read_text("utf-8") if config.is_file() else "{}"
    if file.is_file():
        return read_template(file.read_text("utf-8"), text)
    try:
        return read_template(text)
    except ValueError:
        return None
