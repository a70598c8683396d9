"""What Python hooks cost: gateways without one, and with one that does nothing, loaded in turns.

    python scripts/bench/hooks.py              # two minutes

README.md beside this file describes the measurements and how to read them.
"""

import os
import sys
from pathlib import Path

_SCRIPTS = str(Path(__file__).resolve().parent.parent)
sys.path[0] = _SCRIPTS

import typer  # noqa: E402
from rich.progress import Progress  # noqa: E402

from bench import command  # noqa: E402
from bench.configs import pointsman_rules  # noqa: E402
from bench.processes import Ports  # noqa: E402
from bench.variants import compare_variants, tell_variants  # noqa: E402

# By the name of the variant: the hook, of `bench.noop_hooks`.
HOOKS = {"none": "", "inline": "Inline", "async": "Coroutine", "thread": "Thread"}
MEASURED = ("small", "unique")


def hooked_rules(name: str, upstreams: Ports) -> str:
    """The rules of the HTTP benchmark, with a hook on each route."""
    rules, hook = pointsman_rules(upstreams), HOOKS[name]
    hooks = f"hooks: {{use: bench.noop_hooks:{hook}, timeout: 30s}}"
    return rules.replace("engine: small}", f"engine: small, {hooks}}}") if hook else rules


def main(
    rounds: command.Rounds = 5, seconds: command.Seconds = 2, results: command.ResultsFolder = command.RESULTS
) -> None:
    """Compare hooks that run on the event loop, as coroutines and in threads."""
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (_SCRIPTS, os.environ.get("PYTHONPATH"))))
    with Progress(console=command.console, transient=True) as progress:
        found = compare_variants(list(HOOKS), hooked_rules, MEASURED, rounds, seconds, progress)
    tell_variants(found, list(HOOKS), MEASURED, "hook", "a hook that does nothing", results / "hooks.json")


if __name__ == "__main__":
    typer.run(main)
