"""The choice of a C++ compiler: the first one that works and supports the source."""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path

import pytest

from engines.paged.ops import cpp_compiler
from engines.paged.ops.cpp_compiler import NoCompilerError

REAL = next((path for name in ("g++", "clang++") if (path := shutil.which(name))), None)
pytestmark = pytest.mark.skipif(REAL is None, reason="no C++ compiler")


@pytest.fixture(autouse=True)
def _no_chosen_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setattr(cpp_compiler.importlib.util, "find_spec", lambda name: None)


def script(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def refuses(what: str) -> str:
    """A compiler that fails on one argument or word."""
    return f"""text=$(cat)
case "$* $text" in *{what}*) echo 'error: {what} is not supported' >&2; exit 1;; esac
printf %s "$text" | {REAL} "$@" """


def test_a_stub_is_no_compiler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A command whose version query fails is skipped; without another one, the error names the remedy."""
    script(tmp_path / "clang++", "echo 'xcode-select: note: no developer tools were found' >&2; exit 1")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(NoCompilerError, match="no C\\+\\+ compiler: "):
        cpp_compiler.compiler()
    script(tmp_path / "g++", f'exec {REAL} "$@"')
    assert cpp_compiler.compiler() == (str(tmp_path / "g++"),)


@pytest.mark.parametrize("has_tools", [True, False])
def test_macos_stubs_are_never_called(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, has_tools: bool) -> None:
    """Without the Command Line Tools the compilers in /usr/bin open a dialog; xcode-select detects that without one,
    and they are not called."""
    stubs, other, called = tmp_path / "usr", tmp_path / "other", tmp_path / "called"
    stub = script(stubs / "clang++", f'touch {called}; exec {REAL} "$@"')
    real = script(other / "g++", f'exec {REAL} "$@"')
    select = script(tmp_path / "xcode-select", f'[ "$1" = -p ] && exit {0 if has_tools else 2}')
    monkeypatch.setattr(cpp_compiler, "_STUBS", stubs)
    monkeypatch.setattr(cpp_compiler, "_XCODE_SELECT", str(select))
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setenv("PATH", f"{stubs}:{other}:/usr/bin:/bin")
    assert cpp_compiler.compiler() == ((str(stub if has_tools else real)),)
    assert called.exists() == has_tools
    if not has_tools:
        monkeypatch.setenv("CXX", "clang++")  # by name it is still a stub
        with pytest.raises(NoCompilerError):
            cpp_compiler.compiler()
        assert not called.exists()


def test_compiler_that_lacks_a_type_is_passed_over(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Each compiler is tried with the source, and the first that compiles it is used."""
    first, second = script(tmp_path / "clang++", refuses("_Float16")), script(tmp_path / "g++", f'exec {REAL} "$@"')
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert cpp_compiler.select_compiler("float f(_Float16 x) { return (float)x; }") == ((str(second),), ())
    assert cpp_compiler.select_compiler("float f(float x) { return x; }") == ((str(first),), ())
    monkeypatch.setenv("CXX", str(first))
    with pytest.raises(NoCompilerError, match=re.escape(f"({first}: error: _Float16 is not supported)")):
        cpp_compiler.select_compiler("float f(_Float16 x) { return (float)x; }")


@pytest.mark.parametrize(
    "refused, expected", [("nothing", ("-march=native",)), ("-march", ("-O1",)), ("-march*|*-O1", ())]
)
def test_options_that_a_compiler_refuses_are_dropped(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, refused: str, expected: tuple[str, ...]
) -> None:
    """The first set of options that the compiler accepts is used: Apple's has -mcpu=native instead of -march=native."""
    command = script(tmp_path / "c++", refuses(refused))
    monkeypatch.setenv("CXX", str(command))
    assert cpp_compiler.select_compiler("", (("-march=native",), ("-O1",), ())) == ((str(command),), expected)
