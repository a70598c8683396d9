"""Triton's wheel is found, checked and laid out without importing it and without changing site-packages."""

import importlib.metadata
import importlib.util
import os
import sys
import sysconfig
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from gateway.demo import triton_wheel
from gateway.demo.triton_wheel import STUB, install, place_executable, why_unavailable


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "pointsman"


@pytest.mark.triton
def test_layout_is_complete_and_built_once(cache: Path) -> None:
    """Concurrent starts share one layout, and none leaves an incomplete one."""
    with ThreadPoolExecutor(8) as threads:
        installations = list(threads.map(lambda _: install(), range(8)))
    first = installations[0]
    assert all(installation == first for installation in installations)
    assert [path.parent.parent.parent for path in cache.glob("*/*/*/*.so")] == list(cache.iterdir())
    assert os.access(first.server, os.X_OK)
    assert os.access(first.backends / "python" / STUB, os.X_OK)


@pytest.mark.triton
def test_layout_with_dead_links_is_built_anew() -> None:
    """A layout whose links are broken, as after recreating the environment elsewhere, is rebuilt."""
    stub = install().backends / "python" / STUB
    stub.unlink()
    stub.symlink_to("/nowhere")
    assert install().backends / "python" / STUB == stub
    assert stub.exists()


def test_executables_that_lost_their_mode_are_copied(tmp_path: Path) -> None:
    """A program that an installer unpacked without its mode is copied with it; the original does not change."""
    source, directory = tmp_path / "program", tmp_path / "bin"
    source.write_bytes(b"#!")
    directory.mkdir()
    place_executable(source, directory)
    assert os.access(directory / "program", os.X_OK) and not (directory / "program").is_symlink()
    assert not os.access(source, os.X_OK)


def on_a_mac(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(sys, "platform", "darwin")


def without_the_wheel(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(importlib.util, "find_spec", lambda name: None)


def without_a_stub(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(triton_wheel, "PYTHON_VERSION", "3.99")


def with_numpy_2(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(importlib.metadata, "version", lambda name: "2.4.6")


def without_libpython(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(sys, "base_prefix", "/nowhere")
    patch.setattr(sysconfig, "get_config_vars", lambda: {"LIBDIR": "/install/lib", "MULTIARCH": "x86_64-linux-gnu"})
    patch.setattr(triton_wheel, "bundled_libraries", lambda package: Path("/nowhere"))


REASONS = [
    (on_a_mac, "is for Linux on x86-64, and this is darwin"),
    (without_the_wheel, 'Triton is not installed; `pip install "nvidia-pytriton"`'),
    (without_a_stub, "no stub for Python 3.99; use a Python that it has one for (3.10, 3.11, 3.12, 3.13, 3.8, 3.9)"),
    (with_numpy_2, 'numpy 2.4.6 is too new for Triton\'s stubs; `pip install "numpy<2"`'),
    (without_libpython, ".so.1.0, which this Python does not have; install it (Debian: `apt install libpython3."),
]


@pytest.mark.triton
@pytest.mark.parametrize("change, reason", REASONS, ids=lambda value: getattr(value, "__name__", ""))
def test_reasons(change: Callable[[pytest.MonkeyPatch], None], reason: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where Triton cannot run, one sentence gives the reason and the remedy."""
    assert why_unavailable() is None
    with monkeypatch.context() as patch:
        change(patch)
        assert reason in (why_unavailable() or "")


@pytest.mark.triton
def test_libpython_is_found_where_uv_puts_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """uv's Python reports the LIBDIR of the machine that built it; libpython is found in the base prefix."""
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / f"libpython{triton_wheel.PYTHON_VERSION}.so.1.0").touch()
    monkeypatch.setattr(sys, "base_prefix", str(tmp_path))
    monkeypatch.setattr(sysconfig, "get_config_vars", lambda: {"LIBDIR": "/install/lib"})
    assert triton_wheel.find_libpython(tmp_path) == tmp_path / "lib"
