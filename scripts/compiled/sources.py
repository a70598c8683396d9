"""The gateway's sources, and the edits that mypyc needs, made in a copy. No edit moves a line."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

_PROTOCOL = "asyncio.Protocol"
_CONSTANT = re.compile(r"_?[A-Z][A-Z0-9_]+")
_IMPORTS = "from typing import Any, Final; from mypy_extensions import mypyc_attr, trait"


class Sources:
    """The modules of the gateway, and what is particular about their classes."""

    def __init__(self, root: Path) -> None:
        self.texts = {path: (root / path).read_bytes() for path in _modules(root)}
        self.trees = {path: ast.parse(text) for path, text in self.texts.items()}
        self.second_bases: set[str] = set()
        self.enums: dict[str, list[str]] = {}
        for tree in self.trees.values():
            for node in ast.walk(tree):
                if isinstance(node, ast.ClassDef):
                    self._add(node)

    def _add(self, node: ast.ClassDef) -> None:
        bases = [base for each in node.bases if (base := name_of(each)) is not None]
        self.second_bases.update(bases[1:])
        if bases and bases[0].endswith("Enum"):
            members = [each.targets[0] for each in node.body if isinstance(each, ast.Assign)]
            self.enums[node.name] = [each.id for each in members if isinstance(each, ast.Name)]


class Edits:
    """A module's text as mypyc needs it."""

    def __init__(self, sources: Sources, path: str) -> None:
        self._sources = sources
        self._text = sources.texts[path]
        self._tree = sources.trees[path]
        self._lines = self._text.split(b"\n")
        self._starts = [0]
        for line in self._lines:
            self._starts.append(self._starts[-1] + len(line) + 1)
        self._edits: list[tuple[int, int, str]] = []  # from, to, text
        self._num_bound = Counter(
            node.id for node in ast.walk(self._tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
        )

    def text(self) -> bytes:
        self._import()
        for statement in self._tree.body:
            self._constant(statement)
        for node in ast.walk(self._tree):
            if isinstance(node, ast.ClassDef):
                self._class(node)
            elif isinstance(node, ast.keyword) and node.arg == "bound" and ast.unparse(node.value) == _PROTOCOL:
                self._replace(node.value, "Any")
        text = self._text
        for start, end, new in sorted(self._edits, reverse=True):
            lost = text.count(b"\n", start, end) - new.count("\n")
            text = text[:start] + new.encode() + b"\n" * lost + text[end:]
        return text

    def _import(self) -> None:
        """After the docstring and `from __future__`, on the same line."""
        last: ast.stmt | None = None
        for node in self._tree.body[:2]:
            if isinstance(node, ast.Expr) or (isinstance(node, ast.ImportFrom) and node.module == "__future__"):
                last = node
        if last is not None:
            self._insert_behind(last, f"; {_IMPORTS}")
        else:
            self._edits.append((0, 0, f"{_IMPORTS}; "))

    def _constant(self, node: ast.stmt) -> None:
        """A constant's value may stand where it is read."""
        enums = self._sources.enums
        match node:
            case ast.Assign(targets=[ast.Name(id=name) as target]) if self._is_constant(name):
                self._insert_behind(target, ": Final")
            case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr()) if self._is_constant(name):
                self._replace(node.annotation, f"Final[{ast.unparse(node.annotation)}]")
            case ast.Assign(targets=[ast.Tuple(elts=names)], value=ast.Name(id=enum)) if enum in enums:
                members = zip(names, enums[enum], strict=True)
                self._replace(node, "; ".join(f"{ast.unparse(name)}: Final = {enum}.{of}" for name, of in members))

    def _is_constant(self, name: str) -> bool:
        is_assigned_again = self._num_bound[name] > 1 or f"global {name}".encode() in self._text
        return bool(_CONSTANT.fullmatch(name)) and not is_assigned_again

    def _class(self, node: ast.ClassDef) -> None:
        bases = {base for each in node.bases if (base := name_of(each)) is not None}
        dataclass = next((each for each in node.decorator_list if name_of(each) == "dataclass"), None)
        if dataclass is not None and "Generic" in bases:
            self._write_out(node, dataclass)
        elif isinstance(dataclass, ast.Call):
            # Without slots: extension classes have no others. Not frozen: unpickling assigns attributes.
            options = {str(each.arg): ast.unparse(each.value) for each in dataclass.keywords if each.arg != "slots"}
            if options.pop("frozen", None) and options.get("eq") != "False":
                options["unsafe_hash"] = "True"
            kept = ", ".join(f"{name}={value}" for name, value in options.items())
            self._replace(dataclass, f"dataclass({kept})" if kept else "dataclass")
        if bases & {"Protocol", "NamedTuple", "TypedDict"} and not self._is_of_asyncio(node):
            return
        if any(base.endswith("Enum") for base in bases):
            return
        # Interpreted modules and tests derive from it, and its instances are copied, pickled and made by `__new__`,
        # which this allows too; `serializable` alone leaves out `__init__` where interpreted code makes an instance.
        self._decorate(node, "@mypyc_attr(allow_interpreted_subclasses=True)")
        if node.name in self._sources.second_bases:
            self._decorate(node, "@trait", 1)
        for each in ast.walk(node):
            # an attribute of a type that mypyc does not find where the class is not named
            if isinstance(each, ast.Call) and ast.unparse(each.func) == "cls.__new__" and each.args and not bases:
                self._replace(each, f"{node.name}.__new__({node.name})")
        self._declare_deletable(node)
        if self._is_of_asyncio(node):
            self._without_base(node)

    @staticmethod
    def _is_of_asyncio(node: ast.ClassDef) -> bool:
        return [ast.unparse(each) for each in node.bases] == [_PROTOCOL]

    def _decorate(self, node: ast.ClassDef, text: str, num_above: int = 0) -> None:
        """In the place of a blank line or a comment above the class."""
        first = min([node.lineno, *(each.lineno for each in node.decorator_list)])
        line = first - 2 - num_above  # counted from 0
        old = self._lines[line].strip()
        assert not old or old.startswith(b"#"), f"no blank line above {node.name} for {text}"
        self._edits.append((self._starts[line], self._starts[line + 1] - 1, " " * node.col_offset + text))

    def _declare_deletable(self, node: ast.ClassDef) -> None:
        deleted = {
            target.attr
            for each in ast.walk(node)
            if isinstance(each, ast.Delete)
            for target in each.targets
            if isinstance(target, ast.Attribute) and name_of(target.value) == "self"
        }
        if deleted:
            self._insert_behind(_docstring(node), f"; __deletable__ = {sorted(deleted)!r}")

    def _without_base(self, node: ast.ClassDef) -> None:
        """Extension classes have no interpreted bases, and event loops ask for methods alone."""
        start = self._starts[node.lineno - 1]
        line = self._lines[node.lineno - 1]
        self._edits.append((start + line.index(b"("), start + line.index(b")") + 1, ""))
        if not any(isinstance(each, ast.FunctionDef) and each.name == "eof_received" for each in node.body):
            line_below = _docstring(node).end_lineno or 0
            assert not self._lines[line_below].strip(), f"no blank line below the docstring of {node.name}"
            at = self._starts[line_below]
            self._edits.append((at, at, "    def eof_received(self) -> bool | None: return None"))

    def _write_out(self, node: ast.ClassDef, dataclass: ast.expr) -> None:
        """A generic dataclass with its `__init__`, which is what mypyc has of plain classes alone. Its instances are
        neither compared nor hashed by value."""
        fields = [each for each in node.body if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name)]
        start = self._starts[dataclass.lineno - 1]
        self._edits.append((start, start + (self._text[start:]).index(b"\n"), ""))
        parameters, assigned = ["self"], []
        for each in fields:
            name, default = ast.unparse(each.target), f" = {ast.unparse(each.value)}" if each.value is not None else ""
            parameters.append(f"{name}: {ast.unparse(each.annotation)}{default}")
            assigned.append(f"self.{name} = {name}")
            self._replace(each, "")
        if fields:
            self._edits.pop()
            text = f"def __init__({', '.join(parameters)}) -> None: {'; '.join(assigned)}"
            self._replace(fields[-1], text)

    def _offset(self, line: int | None, column: int | None) -> int:
        assert line is not None and column is not None
        return self._starts[line - 1] + column

    def _insert_behind(self, node: ast.expr | ast.stmt, text: str) -> None:
        at = self._offset(node.end_lineno, node.end_col_offset)
        self._edits.append((at, at, text))

    def _replace(self, node: ast.expr | ast.stmt, text: str) -> None:
        start = self._offset(node.lineno, node.col_offset)
        self._edits.append((start, self._offset(node.end_lineno, node.end_col_offset), text))


def _docstring(node: ast.ClassDef) -> ast.stmt:
    first = node.body[0]
    assert isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant), f"{node.name} has no docstring"
    return first


def name_of(node: ast.expr) -> str | None:
    """The last name of a base or a decorator, without its parameters."""
    if isinstance(node, ast.Subscript):
        return name_of(node.value)
    if isinstance(node, ast.Call):
        return name_of(node.func)
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else None


def _modules(root: Path) -> Iterator[str]:
    for path in sorted((root / "gateway").rglob("*.py")):
        yield path.relative_to(root).as_posix()
