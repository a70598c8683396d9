"""Helpers shared by the supervision tests: rules and scripted workers."""

import sys
from pathlib import Path

from gateway.config.rules import LoadedRules, load_rules
from gateway.config.specs import RulesSpec

RULES = (
    "version: 1\n"
    "engines: {it: {endpoints: ['http://127.0.0.1:1'], health: {interval: 0}}}\n"
    "routes: [{name: all, engine: it}]\n"
)


def scripted(mode: str, notes: Path) -> list[str]:
    """The command of a worker in this mode (see scripted_worker.py), which notes the messages it receives."""
    notes.touch()
    return [sys.executable, "-m", "tests.supervision.scripted_worker", mode, str(notes)]


def rule_file(folder: Path, text: str = RULES) -> Path:
    file = folder / "rules.yaml"
    file.write_text(text)
    return file


def loaded(file: Path) -> LoadedRules:
    found = load_rules([file])
    assert found.rules is not None, found.problems
    return found


def any_rules(folder: Path) -> RulesSpec:
    rules = loaded(rule_file(folder)).rules
    assert rules is not None
    return rules
