"""Commands of `pointsman` within this process: starting one takes a third of a second of CPU time, and most tests are
about what a command says and does. `tests/cli/test_engines.py` starts a real one, too."""

import subprocess
from collections.abc import Mapping

from typer.testing import CliRunner

from gateway.cli.app import make_app


def pointsman(*arguments: str, env: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Run a command; its output is as in a pipe. An error that is no message of the command's is raised."""
    result = CliRunner().invoke(make_app(arguments[0]), list(arguments), env=env)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return subprocess.CompletedProcess(["pointsman", *arguments], result.exit_code, result.stdout, result.stderr)
