"""scripts/compile.py writes what mypyc needs into a copy of the sources, and refuses what would behave otherwise."""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from gateway.cli.app import make_app

REPOSITORY = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(REPOSITORY / "scripts"))

import compile as compiler  # noqa: E402
from compiled.hazards import hazards  # noqa: E402
from compiled.sources import Edits, Sources  # noqa: E402

# Of all that is edited, one; a caller of it that is compiled, and one that is not.
PARTS = '''"""Parts."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

LIMIT = 3


class Kind(Enum):
    """Kinds."""

    ONE = 1
    TWO = 2


_ONE, _TWO = Kind


@dataclass(frozen=True, slots=True)
class Key:
    """A key."""

    name: str
    kind: Kind = Kind.ONE


class Counter:
    """Counts."""

    step = LIMIT

    def __init__(self) -> None:
        self.count = 0

    def add(self, key: Key) -> int:
        self.count += self.step if key.kind is _ONE else 1
        return self.count
'''
TOTAL = '''"""Totals."""

from __future__ import annotations

from gateway.parts import Counter, Key


def total(counter: Counter, keys: list[Key]) -> int:
    return sum([counter.add(key) for key in keys])
'''
USE = """
import copy, pickle
from gateway import parts, total
assert parts.__file__.endswith(".so"), parts.__file__
key = parts.Key("a")
assert pickle.loads(pickle.dumps(key)) == key == copy.copy(key) and len({key, parts.Key("a")}) == 1
class Mine(parts.Counter):
    def add(self, key):
        return super().add(key) + 100
assert total.total(Mine(), [key]) == 103 and parts.Counter().add(parts.Key("b", parts.Kind.TWO)) == 1
try:
    parts.Counter().add("a key")
except TypeError as error:
    assert "parts.py" in str(error.__traceback__.tb_next.tb_frame.f_code.co_filename)
else:
    raise SystemExit("types are not checked")
"""


def tree(root: Path, **modules: str) -> Sources:
    (root / "gateway").mkdir()
    for name, text in modules.items():
        (root / "gateway" / f"{name}.py").write_text(text)
    return Sources(root)


@pytest.fixture(scope="module")
def sources() -> Sources:
    return Sources(REPOSITORY)


def test_the_list_names_modules_without_hazards(sources: Sources) -> None:
    """Each module of the list exists, and nothing in the gateway would behave otherwise once they are compiled."""
    modules = compiler.compiled_modules()
    assert sorted(set(modules)) == modules
    assert [path for path in modules if path not in sources.texts] == []
    assert [*hazards(sources, modules)] == []


def test_edits_move_no_line(sources: Sources) -> None:
    """The prepared copy is Python, whose functions stand in the lines where they stand in the source."""
    for path in compiler.compiled_modules():
        edited = ast.parse(Edits(sources, path).text())
        lines = [
            {(node.name, node.lineno) for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
            for tree in (sources.trees[path], edited)
        ]
        made = {name for name, _ in lines[1] - lines[0]}
        assert lines[0] <= lines[1] and made <= {"__init__", "eof_received"}, path


@pytest.mark.parametrize(
    ("compiled", "interpreted", "told"),
    [
        ("class A:\n    __slots__ = ('__weakref__',)\n", "", "gateway/a.py:1: A: a compiled class takes no weak"),
        ("class A(B): ...\n", "class B: ...\n", "gateway/a.py:1: A is compiled, and its base B is not"),
        ("class A:\n    checks = False\n", "class B(A):\n    checks = True\n", "gateway/b.py:1: B.checks: compiled"),
        (
            "class A: ...\nclass C: ...\nclass D(C, A): ...\n",
            "class B(A): ...\n",
            "gateway/b.py:1: B is not compiled, and A, which is the second base of a class, is",
        ),
        (
            "def f(self):\n    if self.x is None:\n        self.g()\n        return self.x\n",
            "",
            "gateway/a.py:4: self.x may have changed",
        ),
    ],
)
def test_what_would_behave_otherwise_is_refused(tmp_path: Path, compiled: str, interpreted: str, told: str) -> None:
    """Compiling tells the place and the reason."""
    (found,) = hazards(tree(tmp_path, a=compiled, b=interpreted), ["gateway/a.py"])
    assert found.startswith(told)


def test_a_compiled_module_behaves_as_its_source(tmp_path: Path) -> None:
    """Two modules are compiled, and interpreted code uses it: copies, pickles, keys, subclasses."""
    pytest.importorskip("mypyc")
    pytest.importorskip("setuptools")
    if shutil.which("cc") is None:
        pytest.skip("no C compiler")
    source, root = tmp_path / "source", tmp_path / "compiled"
    source.mkdir()
    root.mkdir()
    tree(source, __init__="", parts=PARTS, total=TOTAL)
    (source / "pyproject.toml").write_text("[tool.mypy]\nstrict = true\n")
    found = compiler.compiled(source, root, ["gateway/parts.py", "gateway/total.py"], opt="0")
    assert any(path.startswith("gateway/parts.") for path in found)
    done = subprocess.run([sys.executable, "-c", USE], cwd=root, env={"PYTHONPATH": str(root)}, capture_output=True)
    assert (done.returncode, done.stderr) == (0, b"")


def test_the_version_tells_the_build() -> None:
    """`pointsman --version` names the commit, and says whether the compiled data plane runs."""
    line = CliRunner().invoke(make_app(), ["--version"]).output
    from gateway.wire.http1 import head

    build = "pure Python" if str(head.__file__).endswith(".py") else "compiled"
    assert re.fullmatch(rf"pointsman \d+\.\d+\.\d+ \(commit ([0-9a-f]{{12}}(-dirty)?|unknown), {build}\)\n", line)
