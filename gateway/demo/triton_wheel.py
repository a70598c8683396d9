"""Find the Triton of the `nvidia-pytriton` wheel and lay it out so that it runs: no container, no GPU.

The wheel carries `tritonserver`, its Python backend and one stub for each Python version, but not laid out as Triton
wants them. `install` lays them out in a cache directory and leaves site-packages as it is. Two facts shape the rest:

    1. A stub is linked to libpython, which the loader finds only where LD_LIBRARY_PATH says.
    2. A stub's interpreter may be isolated: it then ignores PYTHONPATH and finds its packages by the `python3` on PATH.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import importlib.metadata
import importlib.util
import os
import platform
import shutil
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Self

DISTRIBUTION = "nvidia-pytriton"
PYTHON_VERSION = f"{sys.version_info.major}.{sys.version_info.minor}"
STUB = "triton_python_backend_stub"


class TritonUnavailableError(RuntimeError):
    """Triton cannot run on this machine or with this Python; the message names the cure."""


@dataclass(frozen=True, slots=True)
class Installation:
    """The server's executable, its backend directory, and what it and its stubs need in their environment."""

    server: Path
    backends: Path
    environment: dict[str, str]


def why_unavailable() -> str | None:
    """The reason why Triton cannot run here, and the cure; None if it can."""
    try:
        Wheel.locate()
    except TritonUnavailableError as reason:
        return str(reason)
    return None


def install() -> Installation:
    """Lay out Triton's files in the cache directory, once for each environment, and return their places.

    A layout is built aside and moved into place under a lock: concurrent starts wait for the first.
    Raises: TritonUnavailableError.
    """
    wheel = Wheel.locate()
    directory = cache_directory() / wheel.cache_key
    directory.parent.mkdir(parents=True, exist_ok=True)
    with _locked(directory.parent):
        if not is_complete(directory):
            shutil.rmtree(directory, ignore_errors=True)
            building = Path(tempfile.mkdtemp(prefix=f".{wheel.cache_key}-", dir=directory.parent))
            wheel.lay_out(building)
            building.rename(directory)
    return Installation(directory / "bin" / "tritonserver", directory / "backends", wheel.environment())


@dataclass(frozen=True, slots=True)
class Wheel:
    """The installed wheel, found but not imported, and the Python that its stubs will run."""

    version: str
    package: Path  # site-packages/pytriton
    libpython: Path | None  # the directory of the shared libpython; None where the wheel carries its own

    @classmethod
    def locate(cls) -> Self:
        if sys.platform != "linux" or platform.machine() != "x86_64":
            raise TritonUnavailableError(
                f"the wheel {DISTRIBUTION} is for Linux on x86-64, and this is {sys.platform} on {platform.machine()}"
            )
        spec = importlib.util.find_spec("pytriton")
        if spec is None or not spec.submodule_search_locations:
            raise TritonUnavailableError(f'Triton is not installed; `pip install "{DISTRIBUTION}"`')
        package = Path(next(iter(spec.submodule_search_locations)))
        check_stub(package)
        check_numpy()
        if not Path(sys.executable).with_name("python3").exists():
            raise TritonUnavailableError(f"Triton's stubs need a `python3` beside {sys.executable}; make a venv")
        return cls(importlib.metadata.version(DISTRIBUTION), package, find_libpython(package))

    @property
    def cache_key(self) -> str:
        # The layout links into site-packages, so two environments with the same versions still need one each.
        place = hashlib.sha256(str(self.package).encode()).hexdigest()[:8]
        return f"triton-{self.version}-{PYTHON_VERSION}-{place}"

    def lay_out(self, directory: Path) -> None:
        """Fill an empty directory with bin/tritonserver and backends/python/."""
        files, backend = self.package / "tritonserver", directory / "backends" / "python"
        backend.mkdir(parents=True)
        (directory / "bin").mkdir()
        for name in ("libtriton_python.so", "triton_python_backend_utils.py"):
            (backend / name).symlink_to(files / "backends" / "python" / name)
        place_executable(files / "bin" / "tritonserver", directory / "bin")
        place_executable(files / "python_backend_stubs" / PYTHON_VERSION / STUB, backend)

    def environment(self) -> dict[str, str]:
        """The variables that must differ from this process's own."""
        additions: dict[str, list[Path | None]] = {
            "LD_LIBRARY_PATH": [self.libpython, bundled_libraries(self.package)],
            "PYTHONPATH": [self.package.parent],
            "PATH": [Path(sys.executable).parent],
        }
        return {
            name: os.pathsep.join([*(str(path) for path in paths if path), *filter(None, [os.environ.get(name)])])
            for name, paths in additions.items()
        }


def check_stub(package: Path) -> None:
    stubs = package / "tritonserver" / "python_backend_stubs"
    if not (stubs / PYTHON_VERSION / STUB).exists():
        versions = ", ".join(sorted(stub.parent.name for stub in stubs.glob(f"*/{STUB}"))) or "none at all"
        raise TritonUnavailableError(
            f"{DISTRIBUTION} has no stub for Python {PYTHON_VERSION}; use a Python that it has one for ({versions})"
        )


def check_numpy() -> None:
    """Refuse numpy 2: the stubs assume numpy 1's memory layout, and would silently return empty tensors."""
    try:
        version = importlib.metadata.version("numpy")
    except importlib.metadata.PackageNotFoundError:
        raise TritonUnavailableError('numpy is not installed; `pip install "numpy<2"`') from None
    if int(version.split(".")[0]) >= 2:
        raise TritonUnavailableError(f'numpy {version} is too new for Triton\'s stubs; `pip install "numpy<2"`')


def find_libpython(package: Path) -> Path | None:
    """Find the directory of the shared libpython that the stub is linked to; None if the wheel carries it.

    Its place differs: LIBDIR for pyenv and conda, the base prefix for uv (whose LIBDIR names the machine it was built
    on), the multiarch directory for Debian.
    """
    major, minor = PYTHON_VERSION.split(".")
    if any(bundled_libraries(package).glob(f"libpython{major}-*.{minor}.so*")):
        return None
    name = f"libpython{PYTHON_VERSION}.so.1.0"
    base, configured = Path(sys.base_prefix), sysconfig.get_config_vars()
    places = [
        configured.get("LIBDIR", ""),
        base / "lib",
        base / "lib64",
        base / "lib" / configured.get("MULTIARCH", ""),
    ]
    for place in map(Path, places):
        if (place / name).exists():
            return place
    raise TritonUnavailableError(
        f"Triton's stub needs {name}, which this Python does not have; install it (Debian: `apt install "
        f"libpython{PYTHON_VERSION}`; pyenv: `PYTHON_CONFIGURE_OPTS=--enable-shared pyenv install {PYTHON_VERSION}`) "
        "or use a Python of uv or conda"
    )


def bundled_libraries(package: Path) -> Path:
    return package.parent / "nvidia_pytriton.libs"


def place_executable(source: Path, directory: Path) -> None:
    """Link an executable file, or copy it where the installer has lost its mode."""
    target = directory / source.name
    if os.access(source, os.X_OK):
        target.symlink_to(source)
    else:
        shutil.copyfile(source, target)
        target.chmod(0o755)


def cache_directory() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "pointsman"


@contextlib.contextmanager
def _locked(directory: Path) -> Iterator[None]:
    """Hold a lock against all other processes and threads."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def is_complete(directory: Path) -> bool:
    """Whether the layout exists and none of its links is broken."""
    return directory.is_dir() and all(path.exists() for path in directory.rglob("*"))
