"""The reference of the rule files, from the specs: each key with its type, its default and its comment."""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from enum import Enum
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from gateway.config.auth_specs import AuthSpec, JwtSpec
from gateway.config.engine_specs import EngineSpec
from gateway.config.experiment_specs import ExperimentSpec, LayerSpec
from gateway.config.hook_specs import HookSpec
from gateway.config.specs import ReplaySpec, RulesSpec, RuleTestSpec, SessionSpec
from gateway.yaml import values
from gateway.yaml.values import NameOf
from scripts.docs_site.pages import Page

PLACE = "reference/rule-keys"
TOP = "a rule file"


@dataclass(frozen=True, slots=True)
class Key:
    """A row of a section."""

    name: str
    kind: str  # as Markdown
    default: str
    meaning: str


# Fields that no key of a file sets.
NO_KEYS: dict[type, set[str]] = {
    EngineSpec: {"name", "sources"},
    ExperimentSpec: {"name"},
    LayerSpec: {"name"},
    RulesSpec: {"digest"},
    HookSpec: {"file", "source"},
    RuleTestSpec: {"places"},
}
# Keys that are called otherwise than their field, and those that no field has.
_NAMES = {(SessionSpec, "replay"): "sequences"}
_MORE_KEYS = {
    RulesSpec: [Key("version", "`1`", "required", "of the language")],
    ReplaySpec: [Key("on_loss", "`replay`, `end`", "`replay`", "of the sequence's endpoint")],
}
# What a key takes that its field does not show; maps of these are no keys.
_TYPES = {
    (EngineSpec, "endpoints"): "list of [map](#engines-name-endpoints) or [map](#engines-name-endpoints-source)",
    (EngineSpec, "api_key"): "credential",
    (EngineSpec, "headers"): "map of credential or `null`",
    (EngineSpec, "chat_template"): "path",
    (SessionSpec, "history"): "`true`, `engine`, or [map](#routes-session-history)",
    (SessionSpec, "replay"): "`replay`, `end`, or [map](#routes-session-sequences)",
    (AuthSpec, "keys"): "list of path",
    (JwtSpec, "jwks"): "URL or path",
}
_LEAVES = {(AuthSpec, "keys"), (JwtSpec, "jwks")}
_WORDS: dict[Any, str] = {
    values.duration: "duration",
    values.size: "size",
    values.integer: "whole number",
    values.number: "number",
    values.name: "name",
    str: "text",
    bool: "`true` or `false`",
    int: "whole number",
    float: "number",
}
_BOUND = re.compile(r"\{text\} is (?:too small|out of range): (?:a share is )?(.*)")


@dataclass(frozen=True, slots=True)
class Section:
    """A map of the rule files: `path` is where it is, as `engines.NAME.health`."""

    path: str
    spec: type
    keys: tuple[Key, ...]

    @property
    def anchor(self) -> str:
        return anchor(self.path)

    @property
    def title(self) -> str:
        return "A rule file" if self.path == TOP else f"`{self.path}`"


def anchor(path: str) -> str:
    return "top" if path == TOP else path.lower().replace(".", "-").replace("_", "-")


def rule_key_page() -> Page:
    """One page with a section for each map."""
    lines = [
        "# Keys of the rule files",
        "",
        "Generated from the specs that read the files. [The rule language](../rules/index.md) explains them with",
        "examples. Durations: `500ms`, `30s`, `2m`, `1h`, or a number of seconds. Sizes: `64MiB`, `1MB`, or a",
        "number of bytes. Shares: `20%` or `0.2`. Where a list is accepted, a single value is too. A credential is a",
        "text, `{file: PATH}` or `{env: NAME}`.",
        "",
    ]
    for section in sections():
        lines += [f"## {section.title} {{#{section.anchor}}}", "", _cell(inspect.getdoc(section.spec) or ""), ""]
        lines += ["| key | type | default | meaning |", "|---|---|---|---|"]
        lines += [f"| `{key.name}` | {key.kind} | {key.default} | {key.meaning} |" for key in section.keys]
        lines.append("")
    return Page("gateway/config/specs.py", PLACE, "Keys of the rule files", lines)


def sections() -> Iterator[Section]:
    """All maps, each once, from the top; one that several keys have is at the shortest path."""
    paths = _paths()
    for path, spec in sorted(((path, spec) for spec, path in paths.items()), key=_order):
        hints, comments = get_type_hints(spec, include_extras=True), _comments(spec)
        keys = [*_MORE_KEYS.get(spec, ())]
        for each in _fields(spec):
            kind = _TYPES.get((spec, each.name)) or _kind(hints[each.name], paths)
            inner, _ = _inner(hints[each.name])
            about = comments.get(each.name) or (_about(inner) if is_dataclass(inner) else "")
            keys.append(Key(_name(spec, each), kind, _default(each, hints[each.name]), _cell(about)))
        yield Section(path, spec, tuple(keys))


def _order(item: tuple[str, type]) -> tuple[int, str]:
    """Sections in the order of the top's keys, each before what it contains."""
    top = [each.name for each in fields(RulesSpec)]
    first = item[0].partition(".")[0]
    return (top.index(first) + 1 if first in top else 0), item[0]


def _paths() -> dict[type, str]:
    """Where each map is."""
    found: dict[type, str] = {RulesSpec: TOP}
    waiting = [RulesSpec]
    for spec in waiting:
        hints = get_type_hints(spec, include_extras=True)
        for each in _fields(spec):
            inner, is_named = _inner(hints[each.name])
            if is_dataclass(inner) and (spec, each.name) not in _LEAVES and inner not in found:
                path = _name(spec, each) if spec is RulesSpec else f"{found[spec]}.{_name(spec, each)}"
                found[inner] = f"{path}.NAME" if is_named else path
                waiting.append(inner)
        if spec is EngineSpec:
            source = _inner(hints["sources"])[0]
            found[source] = f"{found[spec]}.endpoints.source"
            waiting.append(source)
    return found


def _fields(spec: Any) -> list[Field[Any]]:
    hidden = {"location", *NO_KEYS.get(spec, ())}
    return [each for each in fields(spec) if each.name not in hidden]


def _name(spec: type, each: Field[Any]) -> str:
    return _NAMES.get((spec, each.name), each.name)


def _about(spec: Any) -> str:
    return (inspect.getdoc(spec) or "").partition("\n\n")[0]


def _inner(hint: Any) -> tuple[Any, bool]:
    """The spec that a field holds, if any, and whether names that files choose lead to it."""
    kind, arguments = get_origin(hint), get_args(hint)
    if kind in (Union, UnionType, tuple):
        return _inner(arguments[0])
    if kind is Mapping:
        return _inner(arguments[1])[0], True
    return hint, False


def _kind(hint: Any, paths: Mapping[Any, str]) -> str:
    kind, arguments = get_origin(hint), get_args(hint)
    if kind in (Union, UnionType):
        return _kind(arguments[0], paths)
    if kind in (tuple, frozenset):
        return f"list of {_kind(arguments[0], paths)}"
    if kind is Mapping:
        return f"map of {_kind(arguments[1], paths)} by name"
    if kind is Annotated:
        return _parsed(arguments[1], arguments[0])
    if kind is Literal:
        return ", ".join(f"`{each}`" for each in arguments)
    if is_dataclass(hint):
        return f"[map](#{anchor(paths[hint])})"
    if inspect.isclass(hint) and issubclass(hint, Enum):
        return ", ".join(f"`{member.value}`" for member in hint)
    return _WORDS.get(hint, "text")


def _parsed(parse: Any, base: Any) -> str:
    """The words for a parser, with the bounds that it checks."""
    if isinstance(parse, NameOf):
        return f"name of {'an' if parse.kind[0] in 'aeiou' else 'a'} {parse.kind}"
    if parse in _WORDS:
        return _WORDS[parse]
    held = _held(parse)
    if words := held.get("words") or held.get("known"):
        return ", ".join(f"`{word}`" for word in words)
    if (bound := _BOUND.match(str(held.get("message")))) is not None:
        return f"{_parsed(held['parse'], base)}, {_bounds(bound[1], held['parse'])}"
    word = parse.__name__.replace("_", " ")
    return word if word not in ("read", "checked") else _WORDS.get(base, "text")


def _held(parse: Any) -> dict[str, Any]:
    """What a parser holds that a function has made: `gateway.yaml.values`."""
    cells = getattr(parse, "__closure__", None) or ()
    return dict(zip(parse.__code__.co_freevars, (cell.cell_contents for cell in cells), strict=True)) if cells else {}


def _bounds(text: str, parse: Any) -> str:
    """Bounds are numbers of seconds or bytes."""
    show = {values.duration: values.duration_text, values.size: values.size_text}.get(parse)
    if show is None:
        return text
    return re.sub(r"(?<![\w.])[1-9][\d.]*(?![\w.])", lambda number: show(int(float(number[0]))), text)


def _default(each: Field[Any], hint: Any) -> str:
    if each.default is MISSING and each.default_factory is MISSING:
        return "required"
    value = each.default if each.default is not MISSING else None
    parse = next((part for part in _parsers(hint)), None)
    if value is None or is_dataclass(value) or value in ((), ""):
        return ""
    if isinstance(value, Enum):
        return f"`{value.value}`"
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if isinstance(value, tuple | frozenset):
        if isinstance(text := getattr(value, "text", None), str):
            return f"`{text}`"
        shown = [each.value if isinstance(each, Enum) else str(each) for each in value]
        return f"`{', '.join(sorted(shown) if isinstance(value, frozenset) else shown)}`"
    if isinstance(value, int | float) and parse is values.duration:
        return f"`{values.duration_text(value) if value else 0}`"
    if isinstance(value, int | float) and parse is values.size:
        return f"`{values.size_text(int(value))}`"
    return f"`{value:g}`" if isinstance(value, float) else f"`{value}`"


def _parsers(hint: Any) -> Iterator[Any]:
    """The innermost parser of a type of scalars."""
    kind, arguments = get_origin(hint), get_args(hint)
    if kind in (Union, UnionType):
        yield from _parsers(arguments[0])
    elif kind is Annotated:
        parse = arguments[1]
        while callable(inner := _held(parse).get("parse")):
            parse = inner
        yield parse


def _comments(spec: type) -> dict[str, str]:
    """What stands beside a field, or else above it."""
    source = textwrap.dedent(inspect.getsource(spec))
    lines = source.splitlines()
    found: dict[str, str] = {}
    (definition,) = ast.parse(source).body
    assert isinstance(definition, ast.ClassDef)
    for node in definition.body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            within = "\n".join(lines[node.lineno - 1 : node.end_lineno])  # of a value in parentheses
            beside = within if node.lineno != node.end_lineno else lines[node.lineno - 1][node.end_col_offset or 0 :]
            above = []
            line = node.lineno - 2
            while lines[line].strip().startswith("#"):
                above.insert(0, lines[line].strip())
                line -= 1
            text = (
                " ".join(each.lstrip("# ") for each in above)
                if "#" not in beside
                else beside.partition("#")[2].partition("\n")[0]
            )
            found[node.target.id] = text.strip()
    return found


def _cell(text: str) -> str:
    """A comment in a table: code's words are those of the files."""
    shown = re.sub(r"\bNone\b(?!`)", "absent", " ".join(text.split()))
    return shown.replace("|", "\\|").replace("<", "&lt;").replace("True", "true")
