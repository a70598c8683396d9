"""Reading a configuration: config.pbtxt as it lies in a repository, and JSON as a load request carries it.

Source: protobuf's text format; Triton core `model_config_utils.cc` JsonToModelConfig.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from engines.core.errors import EngineError, ErrorCode
from gateway.protocol.protobuf import Message, message, pool


class ConfigError(EngineError):
    """A configuration that cannot be served, in Triton's words. `words` lead to the place in the file: field names and
    quoted values as they follow each other there."""

    def __init__(self, message: str, *words: str) -> None:
        super().__init__(ErrorCode.INVALID_ARG, message)
        self.words = words


def require(holds: object, message: str, *words: str) -> None:
    """Raises: ConfigError unless it holds."""
    if not holds:
        raise ConfigError(message, *words)


def line_of(text: str, words: tuple[str, ...]) -> int | None:
    """The line, counted from 1, of the last of `words`, each looked for behind the one before; None if the first is
    not in the text. Comments count as blank."""
    text = re.sub(r"#[^\n]*", lambda comment: " " * len(comment[0]), text)
    start, last = 0, None
    for word in words:
        match = re.compile(rf"(?<![\w]){re.escape(word)}(?![\w])").search(text, start)
        if match is None:
            break
        last, start = match.start(), match.end()
    return None if last is None else text.count("\n", 0, last) + 1


_UNKNOWN_FIELD = re.compile(r'Message type "(?P<type>[\w.]+)" has no field named "(?P<name>\w+)"')
_UNKNOWN_VALUE = re.compile(r'Enum type "(?P<type>[\w.]+)" has no value named (?P<name>\w+)')
# protobuf repeats the line before the error.
_REPEATED_LINE = re.compile(r"^\d+:\d+ : ('.*': )?", re.DOTALL)


def read(source: str | Path) -> Message:
    """The `inference.ModelConfig` of a file (a Path) or of a text in protobuf's text format. Raises: ConfigError with
    the file, line and column, the error and its correction."""
    from google.protobuf import text_format

    is_file = isinstance(source, Path)
    where = str(source) if is_file else "config"
    try:
        text = source.read_text(encoding="utf-8") if isinstance(source, Path) else source
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{where}: {_reason(error)}") from error
    config = message("inference.ModelConfig")()
    try:
        text_format.Parse(text, config, descriptor_pool=pool())
    except text_format.ParseError as error:
        line, column = error.GetLine(), error.GetColumn()
        place = where if line is None else f"{where}:{line}:{column}"
        raise ConfigError(f"{place}: {_explain(_REPEATED_LINE.sub('', str(error)))}") from error
    if unknown := _unknown_value(config):
        raise ConfigError(f"{where}: {unknown}")
    return config


def read_json(text: str) -> Message:
    """The `inference.ModelConfig` of a JSON object; enum values in any case, as in Triton. Raises: ConfigError with the
    prefix "Invalid config override: "."""
    from google.protobuf.json_format import ParseDict, ParseError

    config = message("inference.ModelConfig")()
    try:
        fields = json.loads(text)
        if not isinstance(fields, dict):
            raise ValueError("it is no JSON object")
        ParseDict(_with_enums(fields, config.DESCRIPTOR), config, descriptor_pool=pool())
    except (ParseError, ValueError, TypeError, AttributeError, RecursionError) as error:
        raise ConfigError(f"Invalid config override: {_explain(str(error))}") from error
    if unknown := _unknown_value(config):
        raise ConfigError(f"Invalid config override: {unknown}")
    return config


def _unknown_value(config: Message) -> str | None:
    """The error for the first number that is not a value of its enum: protobuf accepts any."""
    for enum, number in _enum_values(config):
        if number not in enum.values_by_number:
            return f"{number} is no {enum.name}"
    return None


def _enum_values(config: Message) -> Iterator[tuple[Any, int]]:
    """Each enum value that is set, with the schema of its enum."""
    for field, value in config.ListFields():
        is_one = isinstance(value, int) or hasattr(value, "ListFields")
        elements = (value,) if is_one else value.values() if hasattr(value, "values") else value
        if field.enum_type is not None:
            yield from ((field.enum_type, number) for number in elements)
        elif field.message_type is not None:
            for element in elements:
                yield from _enum_values(element) if hasattr(element, "ListFields") else ()


def _reason(error: OSError | UnicodeDecodeError) -> str:
    return str(error.strerror) if isinstance(error, OSError) else f"it is no UTF-8 text ({error.reason})"


def _explain(text: str) -> str:
    """protobuf's error with the correct names."""
    if match := _UNKNOWN_FIELD.search(text):
        schema = pool().FindMessageTypeByName(match["type"])
        fields = [field.name for field in schema.fields]
        return f"{schema.name} has no field '{match['name']}'; {_right(match['name'], fields)}"
    if match := _UNKNOWN_VALUE.search(text):
        enum = pool().FindEnumTypeByName(match["type"])
        values = [value.name for value in enum.values]
        return f"'{match['name']}' is no {enum.name}; {_right(match['name'], values)}"
    return text


def _right(wrong: str, names: list[str]) -> str:
    close = get_close_matches(wrong, names, n=1, cutoff=0.75)
    return f"'{close[0]}' is near it" if close else f"there are: {', '.join(sorted(names))}"


def _with_enums(fields: dict[str, Any], schema: Any) -> dict[str, Any]:
    """The same JSON with the names of enum values in upper case."""
    named = {field.name: field for field in schema.fields} | {field.json_name: field for field in schema.fields}
    return {name: _value(value, named[name]) if name in named else value for name, value in fields.items()}


def _value(value: Any, field: Any) -> Any:
    if isinstance(value, list):
        return [_value(element, field) for element in value]
    if field.enum_type is not None:
        return value.upper() if isinstance(value, str) else value
    if field.message_type is None or not isinstance(value, dict):
        return value
    if field.message_type.GetOptions().map_entry:
        of_value = field.message_type.fields_by_name["value"]
        return {key: _value(element, of_value) for key, element in value.items()}
    return _with_enums(value, field.message_type)
