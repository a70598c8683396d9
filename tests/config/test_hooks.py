"""Hooks in rule files: where their code comes from, what is wrong with it, and which rules may name it."""

from __future__ import annotations

import sys
import textwrap
from pathlib import Path

import pytest

from gateway.config.host_access import HostNames
from gateway.config.rules import LoadedRules, load_rules, load_texts
from gateway.dry_run.hook_check import with_hooks
from gateway.hooks.loader import load_hook

HOOK = (
    "class Hook:\n    def __init__(self, **options): self.options = options\n    def on_request(self, request): ...\n"
)


def rules(hooks: str) -> str:
    return (
        "version: 1\nengines: {it: {endpoints: ['http://127.0.0.1:1']}}\n"
        f"routes:\n  - name: r\n    engine: it\n    hooks: {hooks}\n"
    )


def loaded(folder: Path, hooks: str, **modules: str) -> LoadedRules:
    for name, code in modules.items():
        (folder / f"{name}.py").write_text(textwrap.dedent(code))
    (folder / "rules.yaml").write_text(rules(hooks))
    return with_hooks(load_rules([folder / "rules.yaml"]))


def test_a_hook_is_a_module_of_the_rule_files_folder(tmp_path: Path) -> None:
    """With its limits and options; the text that was checked goes with the rules, and its file is followed."""
    found = loaded(tmp_path, "[{use: h:Hook, timeout: 2s, on_failure: continue, options: {a: b}}, h:Hook]", h=HOOK)
    assert found.rules is not None, found.problems
    first, second = found.rules.routes[0].hooks
    assert (first.timeout, first.on_failure, first.options, first.source) == (2.0, "continue", {"a": "b"}, HOOK)
    assert (second.timeout, second.on_failure) == (0.25, "refuse")
    assert tmp_path / "h.py" in found.followed_files
    assert load_hook(first).options == {"a": "b"} and load_hook(first) is load_hook(first)


def test_a_changed_module_is_another_hook(tmp_path: Path) -> None:
    """The rules differ in what is read from other files, though their text is the same; so do modules in folders."""
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner" / "h.py").write_text(HOOK)
    before = loaded(tmp_path, "inner.h:Hook").rules
    (tmp_path / "inner" / "h.py").write_text(HOOK + "NEW = 1\n")
    after = loaded(tmp_path, "inner.h:Hook").rules
    assert before is not None and after is not None
    assert before.digest == after.digest and before.of_files != after.of_files
    one, other = (load_hook(each.routes[0].hooks[0]) for each in (before, after))
    assert type(one) is not type(other)


def test_installed_packages_and_entry_points_have_hooks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A module of an installed package, by its name or by an entry point of the group `pointsman.hooks`."""
    site = tmp_path / "site"
    (site / "acme_hooks-1.0.dist-info").mkdir(parents=True)
    (site / "acme_hooks.py").write_text(HOOK)
    (site / "acme_hooks-1.0.dist-info" / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: acme-hooks\nVersion: 1.0\n"
    )
    (site / "acme_hooks-1.0.dist-info" / "entry_points.txt").write_text("[pointsman.hooks]\nacme = acme_hooks:Hook\n")
    monkeypatch.syspath_prepend(str(site))
    (tmp_path / "rules").mkdir()
    found = loaded(tmp_path / "rules", "[acme, acme_hooks:Hook]")
    assert found.rules is not None, found.problems
    assert type(load_hook(found.rules.routes[0].hooks[0])) is sys.modules["acme_hooks"].Hook


WRONG = [
    ("h:Nothing", HOOK, "rules.yaml:6:12", "'h' has no 'Nothing'"),
    ("h:Hok", HOOK, "rules.yaml:6:12", "did you mean 'Hook'?"),
    ("nowhere:Hook", HOOK, "rules.yaml:6:12", "neither the rule file's folder nor an installed package has a module"),
    ("nowhere", HOOK, "rules.yaml:6:12", "no installed package has an entry point 'nowhere'"),
    ("'no hook!'", HOOK, "rules.yaml:6:12", "is no hook: module:object"),
    ("[]", HOOK, "rules.yaml:6:12", "the list is empty"),
    ("{use: h:Hook, timeout: 0s}", HOOK, "rules.yaml:6:", "0s is too small"),
    ("{use: h:Hook, on_failure: never}", HOOK, "rules.yaml:6:", "'never'"),
    ("{use: h:hook, options: {a: b}}", "def hook(request): ...\n", "rules.yaml:6:", "options are for classes"),
    ("{use: h:Hook, options: {b: c}}", "class Hook:\n    def on_request(self, r): ...\n", "rules.yaml:6:", "TypeError"),
    ("h:Hook", "class Hook: ...\n", "rules.yaml:6:12", "it has none of on_request, on_reply, on_chunk, on_error"),
    ("h:Hook", "x = 1\nclass Hook\n", "h.py:2:", "expected ':'"),
    ("h:Hook", "x = 1\ny = 1 / 0\n", "h.py:2:1", "ZeroDivisionError: division by zero"),
    ("h:Hook", "import nothing_of_this_name\n", "h.py:1:1", "ModuleNotFoundError"),
    ("h:Hook", "raise SystemExit(3)\n", "h.py:1:1", "SystemExit"),
]


@pytest.mark.parametrize("hooks, code, place, message", WRONG)
def test_what_cannot_be_loaded_makes_the_rules_invalid(
    tmp_path: Path, hooks: str, code: str, place: str, message: str
) -> None:
    """With file and line: of the rules, or of the module where it fails."""
    found = loaded(tmp_path, hooks, h=code)
    assert found.rules is None
    text = "\n".join(map(str, found.problems))
    assert place in text and message in text, text


def test_rules_of_the_admin_api_name_hooks_of_rule_files_alone(tmp_path: Path) -> None:
    """The same code with the same options, wherever the route is; limits may differ. Nothing else is even read."""
    on_disk = loaded(tmp_path, "{use: h:Hook, options: {a: b}}", h=HOOK, other=HOOK)
    allowed = HostNames(hooks=on_disk.host_names.hooks)

    def judged(hooks: str, name: str = "rules.yaml") -> LoadedRules:
        return load_texts({str(tmp_path / name): rules(hooks)}, allowed=allowed)

    assert judged("{use: h:Hook, options: {a: b}, timeout: 1s}").rules is not None
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner" / "h.py").write_text("raise ValueError\n")
    for hooks in (
        "h:Hook",
        "{use: h:Hook, options: {a: c}}",
        "other:Hook",
        "os:system",
        "{use: h:Other, options: {a: b}}",
    ):
        found = judged(hooks)
        assert found.rules is None and "may use hooks only as those name them" in str(found.problems[0]), hooks
        assert not found.followed_files
    assert judged("{use: h:Hook, options: {a: b}}", "inner/rules.yaml").rules is None


def test_operations_of_the_fleet_pass_no_hooks(tmp_path: Path) -> None:
    """A route that names them gets a warning."""
    (tmp_path / "h.py").write_text(HOOK)
    text = rules("h:Hook").replace("engine: it\n", "engine: it\n    match: {operation: [infer, load, stats]}\n")
    (tmp_path / "rules.yaml").write_text(text)
    found = load_rules([tmp_path / "rules.yaml"])
    assert found.rules is not None
    assert [str(problem).partition("warning: ")[2] for problem in found.problems] == [
        "route 'r': its hooks do not see load, stats, which go to all endpoints of a model"
    ]
