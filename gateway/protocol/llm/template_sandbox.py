"""jinja as `transformers` sets it up for chat templates, in its immutable sandbox and within bounds.

jinja2 is loaded where a template is: most gateways have none.
Source: `transformers` `utils/chat_template_utils.py` (_compile_jinja_template); jinja2, "Sandbox", "Extensions".
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any, cast

from gateway.protocol.llm.template_limits import STEP, Bounds

if TYPE_CHECKING:
    from jinja2 import Environment, nodes

# Names that no template can write.
_STEP, _PAID, _JOINED = " step", " paid", " joined"
# For web pages, slow or by chance.
_LEFT_OUT = frozenset(
    {"filesizeformat", "forceescape", "pprint", "random", "striptags", "urlize", "wordwrap", "xmlattr"}
)
_COMPARING = ("in", "eq", "equalto", "==", "ne", "!=", "lt", "lessthan", "<", "le", "<=", "gt", "greaterthan", ">")


def environment(bounds: Bounds) -> Environment:
    """An environment for one template, whose renderings `bounds` hold in."""
    from jinja2 import TemplateError, pass_context

    made: Environment = _sandbox()(trim_blocks=True, lstrip_blocks=True, extensions=_extensions())
    made.bounds = bounds  # type: ignore[attr-defined]

    @pass_context  # so that nothing is worked out when the template is compiled
    def step(context: Any, value: Any, besides: int = 0) -> Any:
        bounds.spend(besides)
        return value

    @pass_context
    def paid(context: Any, value: Any, besides: int = 0) -> Any:
        return bounds.paid(value, besides)

    @pass_context
    def joined(context: Any, values: list[Any]) -> str:
        texts = [str(value) for value in values]
        bounds.spend(sum(map(len, texts)))
        return "".join(texts)

    def raise_exception(message: str) -> None:
        raise TemplateError(message)

    filters: dict[str, Any] = {**made.filters, "tojson": _to_json}
    made.filters = {name: bounds.filter(name, each) for name, each in filters.items() if name not in _LEFT_OUT}
    made.filters |= {_STEP: step, _PAID: paid, _JOINED: joined}
    made.tests |= {name: bounds.filter(name, cast("Callable[..., Any]", made.tests[name])) for name in _COMPARING}
    made.globals["raise_exception"] = raise_exception
    del made.globals["lipsum"]
    return made


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
def _sandbox() -> type[Environment]:
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    transformer = _transformer()

    class Sandbox(ImmutableSandboxedEnvironment):
        """The sandbox, where all that could be much is paid for."""

        intercepted_binops = frozenset({"+", "*", "**", "%"})
        bounds: Bounds

        def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
            parsed = super()._parse(source, name, filename)
            transformed: nodes.Template = transformer.visit(parsed)
            return transformed

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
def _extensions() -> tuple[Any, ...]:
    from jinja2.ext import Extension, loopcontrols

    class Generation(Extension):
        """`{% generation %}`, by which training finds the answers: what is in it is printed as it is."""

        tags = {"generation"}  # noqa: RUF012

        def parse(self, parser: Any) -> list[nodes.Node]:
            next(parser.stream)
            body: list[nodes.Node] = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            return body

    return Generation, loopcontrols


@cache
def _transformer() -> Any:
    """What puts the paying into a parsed template."""
    from jinja2 import nodes
    from jinja2.visitor import NodeTransformer

    def filtered(node: nodes.Expr, name: str, *args: nodes.Expr) -> nodes.Filter:
        made = nodes.Filter(node, name, list(args), [], None, None, lineno=node.lineno)
        made.environment = node.environment
        return made

    def step(value: Any, like: nodes.Node) -> nodes.Filter:
        const = nodes.Const(value, lineno=like.lineno, environment=like.environment)
        return filtered(const, _STEP, nodes.Const(STEP))

    class Paying(NodeTransformer):
        def visit_For(self, node: nodes.For) -> nodes.Node:  # noqa: N802
            self.generic_visit(node)
            node.body.insert(0, nodes.ExprStmt(step("", node), lineno=node.lineno))
            if node.test is not None:
                node.test = nodes.And(step(True, node), node.test, lineno=node.lineno)
            return node

        def visit_Macro(self, node: nodes.Macro) -> nodes.Node:  # noqa: N802
            self.generic_visit(node)
            node.body.insert(0, nodes.ExprStmt(step("", node), lineno=node.lineno))
            return node

        visit_CallBlock = visit_Macro  # noqa: N815

        def visit_Output(self, node: nodes.Output) -> nodes.Node:  # noqa: N802
            self.generic_visit(node)
            texts = sum(len(child.data) for child in node.nodes if isinstance(child, nodes.TemplateData))
            children: list[nodes.Expr] = [
                child if isinstance(child, nodes.TemplateData) else filtered(child, _PAID) for child in node.nodes
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

    return Paying()
