"""The Python that a model's instances run in, and their environment."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engines.core.errors import invalid

ENVIRONMENT_PARAMETER = "EXECUTION_ENV_PATH"
_MODEL_DIRECTORY = "$$TRITON_MODEL_DIRECTORY"
_ARCHIVES = (".tar.gz", ".tgz", ".tar", ".zip")
_VERSION = f"{sys.version_info.major}.{sys.version_info.minor}"

# What numerical libraries ask for how many threads they may use, each of them in a pool of its own.
_THREAD_VARIABLES = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
    "NUMEXPR_NUM_THREADS",
)


@dataclass(frozen=True, slots=True)
class Interpreter:
    """A Python, and variables of its environment that differ from the host's."""

    executable: str
    environment: dict[str, str]

    def command(self, module: str, *arguments: str) -> list[str]:
        """Run a module of ours; the working directory is no place to import from."""
        return [self.executable, "-P", "-u", "-m", module, *arguments]


def interpreter_for(config: Any, directory: Path, num_processes: int) -> Interpreter:
    """The Python for a model of so many processes: the host's own, or that of the model's virtual environment.

    Raises: EngineError where its environment cannot be used; the text says what can.
    """
    environment = {name: str(threads_each(num_processes)) for name in _THREAD_VARIABLES if name not in os.environ}
    # Where our own modules are, and after those of a virtual environment all that ours has.
    paths = [str(Path(__file__).parents[2]), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    executable = sys.executable
    parameters = config.parameters
    if ENVIRONMENT_PARAMETER in parameters and parameters[ENVIRONMENT_PARAMETER].string_value:
        value = parameters[ENVIRONMENT_PARAMETER].string_value
        root = Path(value.replace(_MODEL_DIRECTORY, str(directory)))
        executable = virtual_python(root)
        environment["VIRTUAL_ENV"] = str(root)
        environment["PATH"] = f"{root / 'bin'}{os.pathsep}{os.environ.get('PATH', '')}"
        environment["POINTSMAN_HOST_PACKAGES"] = os.pathsep.join(path for path in sys.path if "site-packages" in path)
    environment["PYTHONPATH"] = os.pathsep.join(path for path in paths if path)
    return Interpreter(executable, environment)


def threads_each(num_processes: int) -> int:
    """CPU threads for each of so many processes that work at the same time."""
    num_cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, num_cpus // max(1, num_processes))


def virtual_python(root: Path) -> str:
    """The Python of a virtual environment.

    Raises: EngineError.
    """
    if root.name.endswith(_ARCHIVES):
        raise invalid(
            f"{ENVIRONMENT_PARAMETER} '{root}' is an archive of conda-pack, which this host does not unpack: unpack it "
            f"on this machine, or make a virtual environment with `python{_VERSION} -m venv`, and name its directory"
        )
    executable = root / "bin" / "python"
    if not executable.exists():
        raise invalid(f"{ENVIRONMENT_PARAMETER} '{root}' is no virtual environment: there is no {executable}")
    version = _version(root)
    if version is not None and version != _VERSION:
        raise invalid(
            f"{ENVIRONMENT_PARAMETER} '{root}' has Python {version}, and this host runs Python {_VERSION}, which its "
            f"models must run too: make it anew with `python{_VERSION} -m venv`"
        )
    return str(executable)


def _version(root: Path) -> str | None:
    """The version of an environment's Python, `3.11`; None where nothing there tells."""
    settings = root / "pyvenv.cfg"
    if settings.exists():
        for line in settings.read_text().splitlines():
            key, _, value = line.partition("=")
            if key.strip() in ("version", "version_info"):
                return ".".join(value.strip().split(".")[:2])
    libraries = sorted((root / "lib").glob("python3.*"))
    return libraries[0].name.removeprefix("python") if len(libraries) == 1 else None
