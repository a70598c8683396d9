"""scripts/venv.sh: which Python it selects, and its errors."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from tests.support.child import REPOSITORY

Run = Callable[..., subprocess.CompletedProcess[str]]

TOOLS = ("bash", "cat", "cksum", "grep", "rm", "mkdir", "chmod")
# A Python of some version: it prints what the script requests, and its pip installs nothing.
PYTHON = """#!/bin/bash
if [ "$1" = --version ]; then echo "Python {version}"; exit; fi
if [ "$1 $2" = "-m venv" ]; then
    mkdir -p .venv/bin
    printf '#!/bin/bash\\necho "ERROR: no such package" >&2\\nexit {pip_status}\\n' > .venv/bin/python
    chmod +x .venv/bin/python
    exit
fi
exec {real} -c "import sys; sys.version_info = tuple({parts}); exec(sys.argv[1])" "$2"
"""


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """A function that sources the script with only these Pythons in PATH."""
    (tmp_path / "scripts").mkdir()
    (tmp_path / "pyproject.toml").touch()
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in TOOLS:
        (programs / name).symlink_to(str(shutil.which(name)))

    def source(
        pythons: Mapping[str, str], *, system: str = "Darwin", has_tools: bool = True, pip_status: int = 0
    ) -> subprocess.CompletedProcess[str]:
        stubs = {"uname": f"echo {system}", "xcode-select": f"exit {0 if has_tools else 2}"}
        for name, body in stubs.items():
            (programs / name).write_text(f"#!/bin/bash\n{body}\n")
        for name, version in pythons.items():
            text = PYTHON.replace("{version}", version).replace("{pip_status}", str(pip_status))
            text = text.replace("{parts}", str([int(part) for part in version.split(".")]))
            (programs / name).write_text(text.replace("{real}", sys.executable))
        for program in programs.iterdir():
            if not program.is_symlink():
                program.chmod(0o755)
        script = (REPOSITORY / "scripts" / "venv.sh").read_text()
        script = script.replace("/usr/bin/python3", str(programs / "python3"))
        (tmp_path / "scripts" / "venv.sh").write_text(script)
        environment = {key: value for key, value in os.environ.items() if key != "POINTSMAN_PYTHON"}
        return subprocess.run(
            ["bash", "-c", "set -euo pipefail; . scripts/venv.sh demo; echo done"],
            cwd=tmp_path,
            env={**environment, "PATH": str(programs)},
            capture_output=True,
            text=True,
            check=False,
        )

    return source


EVERY = {f"python3.{minor}": f"3.{minor}.1" for minor in (9, 10, 11, 12, 13, 14, 15)}


@pytest.mark.parametrize(
    ("system", "missing", "taken"),
    [
        ("Darwin", (), "3.13.1"),
        ("Darwin", ("python3.13",), "3.12.1"),
        ("Darwin", ("python3.13", "python3.12"), "3.14.1"),
        ("Darwin", ("python3.13", "python3.12", "python3.14"), "3.11.1"),
        ("Linux", (), "3.11.1"),
        ("Linux", ("python3.11",), "3.12.1"),
        ("Linux", ("python3.11", "python3.12", "python3.13"), "3.14.1"),
    ],
)
def test_the_first_supported_python_is_taken(run: Run, system: str, missing: tuple[str, ...], taken: str) -> None:
    """On a Mac 3.13 is preferred, as it has os.waitid; on Linux the oldest, for which most packages have wheels."""
    done = run({name: version for name, version in EVERY.items() if name not in missing}, system=system)
    assert f"Making .venv with Python {taken}\n" in done.stderr and done.stdout == "done\n"


@pytest.mark.parametrize("version", ["3.9.6", "3.15.0"])
def test_a_python3_without_wheels_is_not_taken(run: Run, version: str) -> None:
    """The message says which versions are supported, and how to install one."""
    done = run({"python3": version, "python3.15": "3.15.0"})
    assert done.returncode == 1 and "needs Python 3.11, 3.12, 3.13 or 3.14" in done.stderr
    assert "brew install python@3.13" in done.stderr


def test_the_stub_of_a_mac_without_developer_tools_is_not_called(run: Run) -> None:
    """The stub is not called without developer tools, as it would open a dialog. With them it is an ordinary Python."""
    done = run({"python3": "3.12.1"}, has_tools=False)
    assert done.returncode == 1 and "brew install" in done.stderr
    assert "Making .venv with Python 3.12.1\n" in run({"python3": "3.12.1"}).stderr


def test_an_installation_that_fails_is_reported(run: Run) -> None:
    """The output has pip's error and then the script's; the next run tries again."""
    done = run(EVERY, pip_status=1)
    assert done.returncode == 1 and "ERROR: no such package" in done.stderr
    assert done.stderr.endswith("The installation failed; see above.\n")
    again = run(EVERY, pip_status=1)
    assert again.stderr.endswith("The installation failed; see above.\n")
