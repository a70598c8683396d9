"""What behaves otherwise, or crashes, once some modules are compiled and the others are not. Compiling refuses it."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from compiled.sources import Sources, name_of


def hazards(sources: Sources, modules: list[str]) -> Iterator[str]:
    """What behaves otherwise, or crashes, once these modules are compiled and the others are not."""
    classes = [(path, node) for path, tree in sources.trees.items() for node in ast.walk(tree)]
    compiled: dict[str, ast.ClassDef] = {}
    interpreted: dict[str, ast.ClassDef] = {}
    places: dict[str, str] = {}
    for path, node in classes:
        if isinstance(node, ast.ClassDef) and not {name_of(each) for each in node.bases} & {"Protocol", "NamedTuple"}:
            (compiled if path in modules else interpreted)[node.name] = node
            places[node.name] = f"{path}:{node.lineno}: {node.name}"
    for name, node in compiled.items():
        if name not in interpreted and "__weakref__" in _assigned(node).get("__slots__", ""):
            yield f"{places[name]}: a compiled class takes no weak references"
        for base in map(name_of, node.bases):
            if base in interpreted and base not in compiled and not (base or "").endswith("Error"):
                yield f"{places[name]} is compiled, and its base {base} is not"
    for path in modules:
        for name, line in outdated_tests(sources.trees[path]):
            yield f"{path}:{line}: {name} may have changed since it was found to be None"
    for name, node in interpreted.items():
        if name in compiled:  # another of this name
            continue
        for base in map(name_of, node.bases):
            if base in compiled and base in sources.second_bases:
                yield f"{places[name]} is not compiled, and {base}, which is the second base of a class, is"
        above = [*_above(node, {**interpreted, **compiled})]
        for attribute in _assigned(node).keys() - {"__slots__"}:
            if any(each.name in compiled and attribute in _assigned(each) for each in above):
                yield f"{places[name]}.{attribute}: compiled code reads the one of the compiled base"


def outdated_tests(tree: ast.Module) -> Iterator[tuple[str, int]]:
    """Attributes that were None at a test and are read again after a call, which may have set them, and their lines:
    mypy goes by the test, and compiled code raises TypeError."""
    for node in ast.walk(tree):
        if isinstance(node, ast.If | ast.While):
            for name in _found_none(node.test):
                yield from ((name, line) for line in _reads_after_call(node.body, name))


def _found_none(test: ast.expr) -> Iterator[str]:
    match test:
        case ast.BoolOp(op=ast.And(), values=values):
            for each in values:
                yield from _found_none(each)
        case ast.Compare(left=ast.Attribute() as left, ops=[ast.Is()], comparators=[ast.Constant(value=None)]):
            yield ast.unparse(left)


def _reads_after_call(body: list[ast.stmt], name: str) -> Iterator[int]:
    has_called = False
    for statement in body:
        for node in ast.walk(statement):
            if has_called and isinstance(node, ast.Attribute) and _is_read_of(name, node):
                yield node.lineno
        if isinstance(statement, ast.Assign) and name in map(ast.unparse, statement.targets):
            return
        has_called = has_called or any(isinstance(node, ast.Call | ast.Await) for node in ast.walk(statement))


def _is_read_of(name: str, node: ast.Attribute) -> bool:
    return isinstance(node.ctx, ast.Load) and ast.unparse(node) == name


def _assigned(node: ast.ClassDef) -> dict[str, str]:
    """The class attributes with values."""
    found: dict[str, str] = {}
    for each in node.body:
        match each:
            case ast.Assign(targets=[target], value=value) | ast.AnnAssign(target=target, value=ast.expr() as value):
                found[ast.unparse(target)] = ast.unparse(value)
    return found


def _above(node: ast.ClassDef, classes: dict[str, ast.ClassDef]) -> Iterator[ast.ClassDef]:
    for base in map(name_of, node.bases):
        if base in classes:
            yield classes[base]
            yield from _above(classes[base], classes)
