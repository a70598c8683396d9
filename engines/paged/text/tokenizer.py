"""A model's tokenizer and chat templates, from its Hugging Face folder."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import tokenizers

from engines.core.errors import invalid
from engines.paged.base.json_fields import read_object
from engines.paged.text.detokenizer import ByteDetokenizer, TokenKind, TokenTable, WindowDetokenizer
from gateway.protocol.errors import GatewayError
from gateway.protocol.llm.canonical import Message, Tool
from gateway.protocol.llm.templates import Template, read_template

_NOTHING: frozenset[int] = frozenset()


class Tokenizer:
    """`vocab_size` is the highest id + 1, `eos_ids` end a text, `special_ids` are no text. Any thread may call it."""

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        config: Mapping[str, Any] | None = None,
        template: Template | None = None,
    ) -> None:
        """`config` is tokenizer_config.json, for bos_token and eos_token."""
        backend.no_padding()
        backend.no_truncation()
        self.backend = backend
        self.table = TokenTable(backend)
        self.vocab_size: int = max(backend.get_vocab(with_added_tokens=True).values(), default=-1) + 1
        added = backend.get_added_tokens_decoder()
        self.special_ids = frozenset(token_id for token_id, token in added.items() if token.special)
        self._bos = _text_of((config or {}).get("bos_token"))
        self.bos_id = self._id_of(self._bos)
        eos_id = self._id_of(_text_of((config or {}).get("eos_token")))
        self.eos_ids = _NOTHING if eos_id is None else frozenset({eos_id})
        self._template = template
        self._rendering = threading.Lock()  # a template counts the work of one rendering at a time

    @classmethod
    def load(cls, folder: Path) -> Tokenizer:
        """The tokenizer of a Hugging Face folder.

        Raises: EngineError that names the missing or malformed file.
        """
        path = folder / "tokenizer.json"
        if not path.is_file():
            raise invalid(
                f"{folder} has no tokenizer.json: save the model's tokenizer there (save_pretrained of a fast one)"
            )
        try:
            backend = tokenizers.Tokenizer.from_file(str(path))
        except Exception as error:  # the library raises nothing narrower
            raise invalid(f"{path} is no tokenizer of the `tokenizers` library: {error}") from error
        config = {**read_object(folder / "special_tokens_map.json"), **read_object(folder / "tokenizer_config.json")}
        _add_missing(backend, config)
        return cls(backend, config, read_chat_template(folder, config))

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """`add_special_tokens`: with those of the folder's post-processor, as BOS; one that the text already begins
        with is not doubled.

        Raises: EngineError where the text has unpaired surrogates.
        """
        try:
            ids: list[int] = self.backend.encode(text, add_special_tokens=add_special_tokens).ids
        except (TypeError, UnicodeEncodeError) as error:
            raise invalid("the prompt is no Unicode text: it has halves of surrogate pairs") from error
        is_doubled = add_special_tokens and bool(self._bos) and text.startswith(self._bos)
        return ids[1:] if is_doubled and ids[:2] == [self.bos_id] * 2 else ids

    def decode(self, token_ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """The text of tokens. Unknown ids have none."""
        skipped = self._skipped(skip_special_tokens)
        ids = [each for each in token_ids if each not in skipped]
        return str(self.backend.decode(ids, skip_special_tokens=False))

    @property
    def has_chat_template(self) -> bool:
        return self._template is not None

    def render_chat(
        self,
        messages: Sequence[Message | Mapping[str, Any]],
        tools: Sequence[Tool | Mapping[str, Any]] = (),
        add_generation_prompt: bool = True,
        **extra: Any,
    ) -> str:
        """A conversation by the folder's template, with BOS where the template prints it. `extra` are further variables
        of the template, as enable_thinking; strftime_now is its clock.

        Raises: EngineError where the folder has no template, or the template refuses the conversation.
        """
        if self._template is None:
            raise invalid("the model has no chat template: send a prompt, not messages")
        extra.setdefault("strftime_now", lambda written: datetime.now().strftime(written))
        with self._rendering:
            try:
                return self._template.render(messages, tools, add_generation_prompt, keep_bos=True, **extra)
            except GatewayError as error:
                raise invalid(str(error)) from error

    def detokenizer(self, skip_special_tokens: bool = True) -> ByteDetokenizer | WindowDetokenizer:
        kind = ByteDetokenizer if self.table.kind is TokenKind.BYTES else WindowDetokenizer
        return kind(self.backend, self.table, self._skipped(skip_special_tokens))

    def _skipped(self, skip_special_tokens: bool) -> frozenset[int]:
        return self.special_ids if skip_special_tokens else _NOTHING

    def _id_of(self, token: str) -> int | None:
        return self.backend.token_to_id(token) if token else None


def _add_missing(backend: tokenizers.Tokenizer, config: Mapping[str, Any]) -> None:
    """Add tokens of a tokenizer_config.json that tokenizer.json lacks, where their ids are the next ones."""
    added = config.get("added_tokens_decoder")
    numbered = {int(number): token for number, token in added.items()} if isinstance(added, dict) else {}
    for number, token in sorted(numbered.items()):
        content = _text_of(token)
        if content and backend.token_to_id(content) is None and number == backend.get_vocab_size():
            flags = {name: bool(token.get(name)) for name in ("lstrip", "rstrip", "single_word", "normalized")}
            backend.add_tokens([tokenizers.AddedToken(content, special=bool(token.get("special")), **flags)])


def _text_of(token: Any) -> str:
    """A special token is its text, or {content: text, ...}."""
    content = token.get("content") if isinstance(token, dict) else token
    return content if isinstance(content, str) else ""


_DEFAULT = "default"
_FILE, _OLD_FILE, _MORE = "chat_template.jinja", "chat_template.json", "additional_chat_templates"


def read_chat_template(folder: Path, config: Mapping[str, Any]) -> Template | None:
    """The folder's templates, None where it has none. As in `transformers`: files take precedence over the tokenizer's
    configuration, `config`, and `chat_template.json` comes last.

    Raises: EngineError for an invalid template.
    """
    files = [folder / _FILE, *sorted((folder / _MORE).glob("*.jinja"))]
    sources = {_DEFAULT if path.name == _FILE else path.stem: _read(path) for path in files if path.is_file()}
    if sources:
        written: Any = sources
    elif config.get("chat_template"):
        written = config["chat_template"]
    elif (folder / _OLD_FILE).is_file():
        try:
            written = json.loads(_read(folder / _OLD_FILE))
        except ValueError as error:
            raise invalid(f"{folder / _OLD_FILE} is no JSON: {error}") from error
        written = written.get("chat_template") if isinstance(written, dict) else written
    else:
        return None
    try:
        return read_template(json.dumps({**config, "chat_template": written}))
    except ValueError as error:
        raise invalid(f"the chat template of {folder} cannot be used: {error}") from error


def _read(path: Path) -> str:
    try:
        return path.read_text("utf-8")
    except (OSError, ValueError) as error:
        raise invalid(f"{path} cannot be read: {error}") from error
