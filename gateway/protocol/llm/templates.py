"""Chat templates: how a model wants its conversation as one text, told by jinja beside its tokenizer.

Source: Hugging Face `transformers`, "Chat templates" and `apply_chat_template`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import orjson

from gateway.protocol.errors import ErrorKind, GatewayError
from gateway.protocol.llm.canonical import Media, Message, Reasoning, Text, Tool
from gateway.protocol.llm.template_sandbox import MAX_OUTPUT_CHARS, Bounds, TooMuchError

_DEFAULT, _WITH_TOOLS = "default", "tool_use"


class Template:
    """The chat templates of one model: the usual one, and one for conversations with tools where it has such.
    `takes_tools`: whether any of them looks at tools."""

    def __init__(self, sources: Mapping[str, str], config: Mapping[str, Any]) -> None:
        """`config` is the tokenizer's: its special tokens are known to a template by their names there.

        Raises: ValueError where a source is no template.
        """
        from gateway.protocol.llm.template_sandbox import environment

        self._tokens = _special_tokens(config)
        self._bos = self._tokens.get("bos_token", "") if config.get("add_bos_token") is not False else ""
        self._bounds = Bounds()
        made = environment(self._bounds)
        self._templates = {name: _compiled(made, name, source) for name, source in sources.items()}
        self.takes_tools = _WITH_TOOLS in sources or any("tools" in source for source in sources.values())
        self._knows_developers = {name: "developer" in source for name, source in sources.items()}

    def __repr__(self) -> str:
        return f"<Template: {', '.join(self._templates)}>"

    def render(
        self,
        messages: Sequence[Message | Mapping[str, Any]],
        tools: Sequence[Tool | Mapping[str, Any]] = (),
        add_generation_prompt: bool = True,
        *,
        keep_bos: bool = False,
        strftime_now: Callable[[str], str] | None = None,
        **extra: Any,
    ) -> str:
        """The conversation as a prompt; messages and tools that are mappings are in OpenAI's form already.

        An engine that is given a prompt puts the token that begins a text before it itself, so that the template's is
        left out unless `keep_bos`. `strftime_now` tells the time to a template that asks for it. `extra` are what
        else a template knows, as `enable_thinking`.
        Raises: GatewayError(BAD_REQUEST) with the template's own words.
        """
        name = _WITH_TOOLS if tools and _WITH_TOOLS in self._templates else self._default
        entries = [_message(message) if isinstance(message, Message) else message for message in messages]
        if not self._knows_developers[name]:
            entries = [{**message, "role": _role(message)} for message in entries]
        known = self._tokens | extra
        if strftime_now is not None:
            known["strftime_now"] = strftime_now
        known |= {
            "messages": entries,
            "tools": [_tool(tool) if isinstance(tool, Tool) else tool for tool in tools] or None,
            "documents": extra.get("documents"),
            "add_generation_prompt": add_generation_prompt,
        }
        self._bounds.begin()
        prompt = _printed(self._templates[name], known)
        return prompt if keep_bos or not self._bos else prompt.removeprefix(self._bos)

    @property
    def _default(self) -> str:
        return _DEFAULT if _DEFAULT in self._templates else next(iter(self._templates))


def read_template(text: str, tokenizer_config: str = "") -> Template:
    """The template of a `chat_template.jinja`, or of a `tokenizer_config.json`.

    Special tokens are those of the JSON: of `text`, or of `tokenizer_config` where `text` is jinja.
    Raises: ValueError where it is neither, or names no template.
    """
    config = _object(text)
    if config is None:
        return Template({_DEFAULT: text}, _object(tokenizer_config) or {})
    match config.get("chat_template"):
        case str(source):
            sources = {_DEFAULT: source}
        case [*named] if named:
            try:
                sources = {str(each["name"]): str(each["template"]) for each in named}
            except (KeyError, TypeError) as error:
                raise ValueError("a 'chat_template' in a list must have a 'name' and a 'template'") from error
        case dict(named) if named:
            sources = {str(name): str(source) for name, source in named.items()}
        case _:
            raise ValueError("the tokenizer's configuration has no 'chat_template'")
    return Template(sources, config)


def template_messages(messages: Iterable[Message]) -> list[dict[str, Any]]:
    """Messages in the form that `Template.render` takes as mappings."""
    return [_message(message) for message in messages]


def template_tools(tools: Iterable[Tool]) -> list[dict[str, Any]]:
    """Tools in the form that `Template.render` takes as mappings."""
    return [_tool(tool) for tool in tools]


def _tool(tool: Tool) -> dict[str, Any]:
    function = {"name": tool.name, "description": tool.description, "parameters": dict(tool.parameters)}
    return {"type": "function", "function": function}


def _message(message: Message) -> dict[str, Any]:
    """A message as templates know it: text as one string, parts only where media stand among them, the arguments of a
    tool call as an object."""
    written: dict[str, Any] = {"role": message.role, "content": _content(message)}
    if reasoning := "".join([part.text for part in message.parts if isinstance(part, Reasoning)]):
        written["reasoning_content"] = reasoning
    if message.tool_calls:
        written["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.name, "arguments": _arguments(call.arguments)},
            }
            for call in message.tool_calls
        ]
    if message.tool_call_id:
        written["tool_call_id"] = message.tool_call_id
    if message.name:
        written["name"] = message.name
    return written


def _content(message: Message) -> str | list[dict[str, str]]:
    if not any(isinstance(part, Media) for part in message.parts):
        return message.text
    parts: list[dict[str, str]] = []
    for part in message.parts:
        if isinstance(part, Text):
            parts.append({"type": "text", "text": part.text})
        elif isinstance(part, Media):
            parts.append({"type": part.kind})
    return parts


def _arguments(text: str) -> Any:
    """The object, which templates write in their own way; the text where it is none."""
    found = _object(text)
    return text if found is None else found


def _role(message: Mapping[str, Any]) -> Any:
    """A developer is who older models call the system."""
    role = message.get("role")
    return "system" if role == "developer" else role


def _object(text: str) -> dict[str, Any] | None:
    if not text.lstrip().startswith("{"):
        return None
    try:
        found = orjson.loads(text)
    except orjson.JSONDecodeError:
        return None
    return found if isinstance(found, dict) else None


def _special_tokens(config: Mapping[str, Any]) -> dict[str, Any]:
    """Each is a text, or {content: text, ...}."""
    tokens: dict[str, Any] = {}
    for name, value in config.items():
        content = value.get("content") if isinstance(value, dict) else value
        if name.endswith("_token") and isinstance(content, str):
            tokens[name] = content
    return tokens


def _compiled(made: Any, name: str, source: str) -> Any:
    from jinja2 import TemplateSyntaxError

    try:
        return made.from_string(source)
    except TemplateSyntaxError as error:
        raise ValueError(f"the chat template '{name}' has an error in line {error.lineno}: {error.message}") from error
    except (RecursionError, TooMuchError, SyntaxError, MemoryError) as error:
        raise ValueError(f"the chat template '{name}' cannot be compiled: {error}") from error


def _printed(template: Any, known: Mapping[str, Any]) -> str:
    pieces: list[str] = []
    left = MAX_OUTPUT_CHARS
    try:
        for piece in template.generate(known):
            left -= len(piece)
            if left < 0:
                raise TooMuchError(f"it prints more than {MAX_OUTPUT_CHARS} characters")
            pieces.append(piece)
    except Exception as error:  # a template is a program: it may raise anything
        what = str(error) or type(error).__name__
        raise GatewayError(ErrorKind.BAD_REQUEST, f"the chat template refuses the conversation: {what}") from error
    return "".join(pieces)
