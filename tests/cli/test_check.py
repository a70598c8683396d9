"""`pointsman check`."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.cli.check import check

GOOD = "version: 1\nengines: {e: {endpoints: 'http://a'}}\nroutes: [{name: r, engine: e}]\n"
CASES = [
    (GOOD, 0, ["1 engine, 1 route, 0 experiments: ok"]),
    (GOOD + "limits: [{name: l, concurrency: 2}]\n", 0, ["1 engine, 1 route, 0 experiments, 1 limit: ok"]),
    (
        GOOD.replace("engines: {", "engines: {f: {endpoints: 'http://b'}, "),
        0,
        [
            "rules.yaml:2:11: warning: engine 'f' is not used by any route",
            "2 engines, 1 route, 0 experiments: ok, 1 warning",
        ],
    ),
    (
        GOOD.replace("engine: e", "engin: e") + "rutes: []\n",
        1,
        [
            "rules.yaml:2:11: warning: engine 'e' is not used by any route",
            "rules.yaml:3:20: error: unknown key 'engin' in a route: did you mean 'engine'?",
            "rules.yaml:4:1: error: unknown key 'rutes' in a rule file: did you mean 'routes'?",
            "2 errors, 1 warning: refused",
        ],
    ),
]


@pytest.mark.parametrize("text, code, lines", CASES)
def test_check_says_all_and_exits_by_errors(
    text: str,
    code: int,
    lines: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """`pointsman check` prints one line per finding in compiler format, then a summary; warnings alone exit with 0."""
    monkeypatch.chdir(tmp_path)
    Path("rules.yaml").write_text(text)
    assert check([Path("rules.yaml")]) == code
    assert capsys.readouterr().out.splitlines() == lines
