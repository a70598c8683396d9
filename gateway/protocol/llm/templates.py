"""Chat templates: how a model wants its conversation as one text, told by jinja beside its tokenizer.

Source: Hugging Face `transformers`, "Chat templates" and `apply_chat_template`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from gateway.protocol.llm.canonical import Media, Message, Reasoning, Text, Tool
from gateway.protocol.llm.template_sandbox import sandbox_class

_DEFAULT, _WITH_TOOLS = "default", "tool_use"


class Template:
    """The chat templates of one model: the usual one, and one for conversations with tools where it has such.
    `takes_tools`: whether any of them looks at tools."""

    def __init__(self, sources: Mapping[str, str], config: Mapping[str, Any]) -> None:
        """`config` is the tokenizer's: its special tokens are known to a template by their names there.

        Raises: ValueError where a source is no template.
        """
        self._tokens = _special_tokens(config)
        self._bos = self._tokens.get("bos_token", "") if config.get("add_bos_token") is not False else ""
        self._sandbox = sandbox_class()()
        self._templates = {name: self._sandbox.compiled(name, source) for name, source in sources.items()}
        self._default = _DEFAULT if _DEFAULT in sources else next(iter(sources))
        self.takes_tools = _WITH_TOOLS in sources or any("tools" in source for source in sources.values())
        self._knows_developers = {name: "developer" in source for name, source in sources.items()}

    def render(
        self,
        messages: Sequence[Message | Mapping[str, Any]],
        tools: Sequence[Tool | Mapping[str, Any]] = (),
        add_generation_prompt: bool = True,
        *,
        keep_bos: bool = False,
        **extra: Any,
    ) -> str:
        """The conversation as a prompt; messages and tools that are mappings are in OpenAI's form already.

        Engines begin a prompt with their first token themselves, so the template's is left out unless `keep_bos`.
        `extra` are further variables of the template, as `enable_thinking`; `strftime_now` is its clock.
        Raises: GatewayError(BAD_REQUEST) with the template's own words.
        """
        name = _WITH_TOOLS if tools and _WITH_TOOLS in self._templates else self._default
        entries = [template_message(message) if isinstance(message, Message) else message for message in messages]
        if not self._knows_developers[name]:
            entries = [
                {**message, "role": "system"} if message.get("role") == "developer" else message for message in entries
            ]
        known = self._tokens | extra
        known |= {
            "messages": entries,
            "tools": [template_tool(tool) if isinstance(tool, Tool) else tool for tool in tools] or None,
            "documents": extra.get("documents"),
            "add_generation_prompt": add_generation_prompt,
        }
        prompt: str = self._sandbox.printed(self._templates[name], known)
        return prompt if keep_bos or not self._bos else prompt.removeprefix(self._bos)


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


def template_tool(tool: Tool) -> dict[str, Any]:
    """A tool as templates know it."""
    function = {"name": tool.name, "description": tool.description, "parameters": dict(tool.parameters)}
    return {"type": "function", "function": function}


def template_message(message: Message) -> dict[str, Any]:
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
    parts = [part for part in message.parts if not isinstance(part, Reasoning)]
    return [{"type": "text", "text": part.text} if isinstance(part, Text) else {"type": part.kind} for part in parts]


def _arguments(text: str) -> Any:
    """The object, which templates write in their own way; the text where it is none."""
    found = _object(text)
    return text if found is None else found


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
    tokens = {name: value for name, value in config.items() if name.endswith("_token")}
    texts = {name: token.get("content") if isinstance(token, dict) else token for name, token in tokens.items()}
    return {name: text for name, text in texts.items() if isinstance(text, str)}
