"""What experiments have decided at a gateway without Redis, and what is left of it by another's hand."""

import asyncio
from pathlib import Path

from gateway.experiments.coordination import LocalCoordination


def test_what_is_no_decision_in_its_file_is_passed_over(tmp_path: Path) -> None:
    """Half a line, as of a gateway that was killed, or what somebody has written into it."""
    lines = ['{"experiment": "x"}', "[]", "null", "7", '{"experiment": ']
    (tmp_path / "decisions.jsonl").write_text("\n".join(lines))
    (tmp_path / "states.json").write_text("[]")
    assert asyncio.run(LocalCoordination(tmp_path).decisions(10)) == [{"experiment": "x"}]
