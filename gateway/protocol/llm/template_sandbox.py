"""How much a chat template may do: it comes with a model, from its author, and it runs on the event loop.

A template pays for each turn of a loop, each call, and each character that it makes or goes over. What no template of
a chat needs, as a text that is a hundred thousand characters wide, is refused before it is made.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache, wraps
from typing import TYPE_CHECKING, Any, cast

from gateway.protocol.errors import ErrorKind, GatewayError

if TYPE_CHECKING:
    from jinja2 import nodes

# In characters: a template goes over a conversation some ten times, and few models' contexts hold a megabyte. What is
# held at once can be no more than that; what it costs at most is a second or two.
MAX_WORK = 64 * 1024 * 1024
STEP = 256  # a turn of a loop or a call, in characters of about as long a time
MAX_OUTPUT_CHARS = 16 * 1024 * 1024
MAX_NUMBER = 100_000  # of an argument: a width, a count, an indent
MAX_BITS = 4096  # of a whole number

_ELEMENT = 32  # of a list or a dict that is printed
_MAX_JSON_WIDTH = 64  # indent and separators of `tojson`

_SIZED = (str, list, tuple, dict, range)
# A width of six digits, or one that another value says.
_WIDE_PERCENT = re.compile(r"%[^a-zA-Z%]*\d{6}")
_WIDE_BRACES = re.compile(r"\{[^{}]*(?:\d{6}|\{)")
_NUMBER = re.compile(r"\d{1,5}")
# What makes much of little, and no template of a chat has.
_REFUSED_METHODS = frozenset({"expandtabs", "translate"})
# Filters that make a text of what they are handed.
_PRINTING = frozenset({"capitalize", "center", "e", "escape", "lower", "string", "title", "trim", "upper"})


class TemplateLimitError(Exception):
    """The template does more than a chat template has to."""


class Bounds:
    """The work of one rendering at a time. Everything below raises TemplateLimitError."""

    def __init__(self) -> None:
        self._left = MAX_WORK

    def begin(self) -> None:
        """A rendering begins."""
        self._left = MAX_WORK

    def spend(self, work: int) -> None:
        """Pay, in characters."""
        self._left -= work
        if self._left < 0:
            raise TemplateLimitError("it does more than a chat template may")

    def paid(self, value: Any, besides: int = 0) -> Any:
        """The value, paid for by its size; an iterator pays as it goes."""
        if isinstance(value, _SIZED):
            self.spend(len(value) + besides)
        elif isinstance(value, Iterator):
            return self._paying(value)
        elif besides:
            self.spend(besides)
        return value

    def check_operation(self, operator: str, left: Any, right: Any) -> None:
        """Pay for `left operator right`, before it is made."""
        if operator == "*":
            for text, count in ((left, right), (right, left)):
                if isinstance(text, str | list | tuple) and isinstance(count, int):
                    self.spend(len(text) * max(0, count))
            if isinstance(left, int) and isinstance(right, int):
                _check_bits(left.bit_length() + right.bit_length())
        elif operator == "**" and isinstance(left, int) and isinstance(right, int):
            _check_bits(left.bit_length() * max(0, right))
        elif operator == "%" and isinstance(left, str):
            self._check_percent(left, right if isinstance(right, tuple) else (right,))
        elif operator == "+":
            self.spend(sum(len(side) for side in (left, right) if isinstance(side, _SIZED)))

    def check_arguments(self, values: Iterable[Any]) -> None:
        """Pay for what is handed in; a number there says how much is to be made."""
        for value in values:
            if isinstance(value, int) and abs(value) > MAX_NUMBER:
                raise TemplateLimitError(f"{value} is more than an argument in a chat template may be")
            if isinstance(value, _SIZED):
                self.spend(len(value))

    def check_method(self, owner: Any, name: str, values: tuple[Any, ...]) -> None:
        """Pay for a method of a text or a list."""
        if isinstance(owner, _SIZED):
            self.spend(len(owner))
        if isinstance(owner, str) and name in _REFUSED_METHODS:
            raise TemplateLimitError(f"a chat template does not need {name!r}")
        if name == "replace" and len(values) > 1:
            text, old, new = map(str, (owner, *values[:2]))
            self.spend(len(text) + (text.count(old) + 1) * len(new))
        elif name == "join" and values and isinstance(values[0], _SIZED):
            self.spend(len(str(owner)) * len(values[0]))
            self.pay_printed(values[0])
        elif name in ("format", "format_map") and isinstance(owner, str):
            _refuse_width(_WIDE_BRACES.search(owner.replace("{{", "").replace("}}", "")))
            self._pay_form(owner, "{", values)
        self.check_arguments(values)

    def filter(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """The filter, or test, within these bounds."""
        skipped = 1 if getattr(function, "jinja_pass_arg", None) is not None else 0  # the context, say

        @wraps(function)  # with the mark that says what it must be handed first
        def bounded(*args: Any, **kwargs: Any) -> Any:
            value, others = args[skipped], (*args[skipped + 1 :], *kwargs.values())
            if name == "join" and isinstance(value, Iterator):
                value = list(self._paying(value))
                args = (*args[:skipped], value, *args[skipped + 1 :])
            if name in _PRINTING:
                self.pay_printed(value)
            elif name == "indent":
                self.spend((str(value).count("\n") + 1) * sum(map(_width, others)))
            elif name == "tojson":
                self._pay_json(value, others)
            elif name == "sum" and any(isinstance(each, list | tuple) for each in others):
                raise TemplateLimitError("a chat template's sum is of numbers")
            if name == "format":
                self._check_percent(str(value), others)
            elif name == "join":
                self.check_method(others[0] if others else "", name, (value, *others[1:]))
            else:
                self.check_method(value, name, others)
            return self.paid(function(*args, **kwargs), STEP)

        return bounded

    def _check_percent(self, form: str, values: Iterable[Any]) -> None:
        _refuse_width(_WIDE_PERCENT.search(form))
        values = tuple(values)
        self.check_arguments(values)
        self._pay_form(form, "%", values)
        if "*" in form:  # widths that values say
            self.spend(sum(abs(value) for value in values if isinstance(value, int)))

    def _pay_form(self, form: str, mark: str, values: tuple[Any, ...]) -> None:
        """Pay for a format, each field of which may print all values, as wide as its numbers say."""
        self.spend(len(form) + sum(map(int, _NUMBER.findall(form))))
        if mark in form:
            self.pay_printed(values, form.count(mark))

    def _pay_json(self, value: Any, others: tuple[Any, ...]) -> None:
        width = sum(_width(each) for option in others for each in (option if isinstance(option, tuple) else (option,)))
        if width > _MAX_JSON_WIDTH:
            raise TemplateLimitError(f"a chat template's JSON is indented and separated by {width} characters")
        self.pay_printed(value, 1 + width // 8)

    def pay_printed(self, value: Any, times: int = 1) -> None:
        """Pay for a value's text, printed so many times, before it is made: with all that is in a list or a dict."""
        left = [value]
        while left:
            each = left.pop()
            if isinstance(each, str):
                self.spend(len(each) * times)
            elif isinstance(each, list | tuple | dict):
                self.spend(len(each) * _ELEMENT * times)
                left += each
                if isinstance(each, dict):
                    left += each.values()
            elif type(each).__name__ == "Namespace":  # jinja's
                left.append(each._Namespace__attrs)

    def _paying(self, values: Iterator[Any]) -> Iterator[Any]:
        for value in values:
            self.spend(STEP)
            yield value


def _width(value: Any) -> int:
    return abs(value) if isinstance(value, int) else len(value) if isinstance(value, str) else 0


def _refuse_width(found: re.Match[str] | None) -> None:
    if found is not None:
        raise TemplateLimitError(f"a chat template's format is too wide: {found[0][:40]!r}")


def _check_bits(bits: int) -> None:
    if bits > MAX_BITS:
        raise TemplateLimitError(f"a chat template's whole number has more than {MAX_BITS} bits")


# Names that no template can write.
_STEP, _PAID, _PRINTED, _JOINED = " step", " paid", " printed", " joined"
# For web pages, slow or by chance.
_LEFT_OUT = frozenset(
    {"filesizeformat", "forceescape", "pprint", "random", "striptags", "urlize", "wordwrap", "xmlattr"}
)
_COMPARING = ("in", "eq", "equalto", "==", "ne", "!=", "lt", "lessthan", "<", "le", "<=", "gt", "greaterthan", ">")


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON without HTML's escapes, which jinja's own filter writes."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


@cache
def sandbox_class() -> Callable[[], Any]:
    """`Sandbox`, an environment of jinja, which is loaded late: it brings threads' locks and loggers."""
    from jinja2 import Template, TemplateError, TemplateSyntaxError, pass_context
    from jinja2.ext import loopcontrols
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    charged, generation = _charging(), _generation()

    # `pass_context`, so that nothing is worked out when the template is compiled.
    @pass_context
    def _step(context: Any, value: Any, besides: int = 0) -> Any:
        context.environment.bounds.spend(besides)
        return value

    @pass_context
    def _paid(context: Any, value: Any, besides: int = 0) -> Any:
        return context.environment.bounds.paid(value, besides)

    @pass_context
    def _printed(context: Any, value: Any) -> Any:
        if isinstance(value, str):  # nearly always
            context.environment.bounds.spend(len(value))
        else:
            context.environment.bounds.pay_printed(value)
        return value

    @pass_context
    def _joined(context: Any, values: list[Any]) -> str:
        for value in values:
            if not isinstance(value, str):
                context.environment.bounds.pay_printed(value)
        texts = [str(value) for value in values]
        context.environment.bounds.spend(sum(map(len, texts)))
        return "".join(texts)

    def raise_exception(message: str) -> None:
        raise TemplateError(message)

    class Sandbox(ImmutableSandboxedEnvironment):
        """The environment of one model's templates, in which all that could be much is paid for."""

        intercepted_binops = frozenset({"+", "*", "**", "%"})

        def __init__(self) -> None:
            super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=(generation, loopcontrols))
            self.bounds = bounds = Bounds()
            filters: dict[str, Any] = {**self.filters, "tojson": _to_json}
            self.filters = {name: bounds.filter(name, each) for name, each in filters.items() if name not in _LEFT_OUT}
            self.filters |= {_STEP: _step, _PAID: _paid, _PRINTED: _printed, _JOINED: _joined}
            self.tests |= {
                name: bounds.filter(name, cast("Callable[..., Any]", self.tests[name])) for name in _COMPARING
            }
            self.globals["raise_exception"] = raise_exception
            del self.globals["lipsum"]

        def compiled(self, name: str, source: str) -> Template:
            """Raises: ValueError where the source is no template."""
            try:
                return self.from_string(source)
            except TemplateSyntaxError as error:
                what = f"the chat template '{name}' has an error in line {error.lineno}: {error.message}"
                raise ValueError(what) from error
            except (RecursionError, TemplateLimitError, SyntaxError, MemoryError) as error:
                raise ValueError(f"the chat template '{name}' cannot be compiled: {error}") from error

        def printed(self, template: Template, known: Mapping[str, Any]) -> str:
            """Raises: GatewayError(BAD_REQUEST) with the template's own words."""
            self.bounds.begin()
            pieces: list[str] = []
            left = MAX_OUTPUT_CHARS
            try:
                for piece in template.generate(known):
                    left -= len(piece)
                    if left < 0:
                        raise TemplateLimitError(f"it prints more than {MAX_OUTPUT_CHARS} characters")
                    pieces.append(piece)
            except Exception as error:  # a template is a program: it may raise anything
                what = str(error) or type(error).__name__
                raise GatewayError(
                    ErrorKind.BAD_REQUEST, f"the chat template refuses the conversation: {what}"
                ) from error
            return "".join(pieces)

        def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
            parsed: nodes.Template = charged.visit(super()._parse(source, name, filename))
            return parsed

        def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
            self.bounds.check_operation(operator, left, right)
            return super().call_binop(context, operator, left, right)

        def call(__self, __context: Any, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805
            bounds = __self.bounds
            bounds.spend(STEP)
            method = getattr(__obj, "__wrapped__", __obj)  # the sandbox's own of `str.format`
            owner = getattr(method, "__self__", None)
            bounds.check_method(owner, getattr(method, "__name__", ""), (*args, *kwargs.values()))
            return bounds.paid(super().call(__context, __obj, *args, **kwargs))

    return Sandbox


@cache
def _generation() -> Any:
    from jinja2.ext import Extension

    class Generation(Extension):
        """`{% generation %}`, by which training finds the answers: what is in it is printed as it is."""

        tags = {"generation"}  # noqa: RUF012

        def parse(self, parser: Any) -> list[nodes.Node]:
            next(parser.stream)
            body: list[nodes.Node] = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            return body

    return Generation


@cache
def _charging() -> Any:
    """What puts the paying into a parsed template."""
    from jinja2 import nodes
    from jinja2.visitor import NodeTransformer

    def filtered(node: nodes.Expr, name: str, *args: nodes.Expr) -> nodes.Filter:
        charged = nodes.Filter(node, name, list(args), [], None, None, lineno=node.lineno)
        charged.environment = node.environment
        return charged

    def step(value: Any, like: nodes.Node) -> nodes.Filter:
        const = nodes.Const(value, lineno=like.lineno, environment=like.environment)
        return filtered(const, _STEP, nodes.Const(STEP))

    class Charging(NodeTransformer):
        def visit_For(self, node: nodes.For) -> nodes.Node:  # noqa: N802
            self.visit_Macro(node)
            if node.test is not None:
                node.test = nodes.And(step(True, node), node.test, lineno=node.lineno)
            return node

        def visit_Macro(self, node: nodes.For | nodes.Macro | nodes.CallBlock) -> nodes.Node:  # noqa: N802
            self.generic_visit(node)
            node.body.insert(0, nodes.ExprStmt(step("", node), lineno=node.lineno))
            return node

        visit_CallBlock = visit_Macro  # noqa: N815

        def visit_Output(self, node: nodes.Output) -> nodes.Node:  # noqa: N802
            self.generic_visit(node)
            texts = sum(len(child.data) for child in node.nodes if isinstance(child, nodes.TemplateData))
            children: list[nodes.Expr] = [
                child if isinstance(child, nodes.TemplateData) else filtered(child, _PRINTED) for child in node.nodes
            ]
            if texts:
                const = nodes.Const("", lineno=node.lineno, environment=node.environment)
                children.insert(0, filtered(const, _PAID, nodes.Const(texts)))
            node.nodes = children
            return node

        def visit_Concat(self, node: nodes.Concat) -> nodes.Node:  # noqa: N802
            self.generic_visit(node)
            return filtered(nodes.List(node.nodes, lineno=node.lineno, environment=node.environment), _JOINED)

        def visit_Operand(self, node: nodes.Operand) -> nodes.Node:  # noqa: N802
            self.generic_visit(node)
            node.expr = filtered(node.expr, _PAID)
            return node

        def visit_Getitem(self, node: nodes.Getitem) -> nodes.Node:  # noqa: N802
            self.generic_visit(node)
            return filtered(node, _PAID) if isinstance(node.arg, nodes.Slice) else node

    return Charging()
