"""The command line without numpy, which only shadows and engines need."""

import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
# numpy cannot be imported: the program is that of `python -m NAME ARGUMENTS...`.
_BLOCKED = """
import importlib, runpy, sys
class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "numpy":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Blocker())
sys.argv = sys.argv[1:]
if sys.argv[0] == "import":
    for name in sys.argv[1:]:
        importlib.import_module(name)
else:
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
"""
RULES = """\
version: 1
engines: {triton: {protocol: kserve, endpoints: ["http://10.0.0.5:8000"]}}
routes: [{name: all, engine: triton}]
"""


def run(*arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", _BLOCKED, *arguments], cwd=REPOSITORY, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize(
    "arguments, text",
    [
        (("check", "RULES"), "1 route"),
        (("explain", "RULES", "--model", "m"), "triton"),
        (("serve", "--help"), "--rules"),
        (("doctor", "--help"), "--report"),
    ],
)
def test_commands_run_without_numpy(arguments: tuple[str, ...], text: str, tmp_path: Path) -> None:
    """Commands run without numpy, which `pip install pointsman` does not install."""
    rules = tmp_path / "rules.yaml"
    rules.write_text(RULES)
    assert text in run("gateway", *(str(rules) if each == "RULES" else each for each in arguments))


def test_servers_start_without_numpy() -> None:
    """The modules of `serve`, for the control process and for workers, and of the engines' command line import without
    numpy."""
    run("import", "gateway.cli.supervisor", "gateway.worker.process", "gateway.admin.app", "engines.cli.app")
