"""The files of experiments on a gateway without Redis, also if they are damaged."""

import asyncio
from pathlib import Path

from gateway.experiments.coordination import LocalCoordination


def test_what_is_no_decision_in_its_file_is_passed_over(tmp_path: Path) -> None:
    """Truncated lines, as a killed gateway leaves them, and foreign lines are skipped."""
    lines = ['{"experiment": "x"}', "[]", "null", "7", '{"experiment": ']
    (tmp_path / "decisions.jsonl").write_text("\n".join(lines))
    (tmp_path / "states.json").write_text("[]")
    assert asyncio.run(LocalCoordination(tmp_path).decisions(10)) == [{"experiment": "x"}]
