"""Differences between versions."""

import shutil
import subprocess
from pathlib import Path

import pytest

from gateway.rule_versions.version import diff_texts


def test_only_files_that_differ_are_told() -> None:
    """A changed file has a unified diff; a new file is all added, a deleted one all removed."""
    before = {"a.yaml": "1\n2\n", "same.yaml": "x\n", "gone.yaml": "g\n"}
    after = {"a.yaml": "1\n3\n", "same.yaml": "x\n", "new.yaml": "n"}
    assert diff_texts(before, after, "4", "5") == [
        {"name": "a.yaml", "diff": "--- a.yaml (4)\n+++ a.yaml (5)\n@@ -1,2 +1,2 @@\n 1\n-2\n+3\n"},
        {"name": "gone.yaml", "diff": "--- gone.yaml (4)\n+++ gone.yaml (5)\n@@ -1 +0,0 @@\n-g\n"},
        {
            "name": "new.yaml",
            "diff": "--- new.yaml (4)\n+++ new.yaml (5)\n@@ -0,0 +1 @@\n+n\n\\ No newline at end of file\n",
        },
    ]


@pytest.mark.skipif(shutil.which("patch") is None, reason="there is no patch here")
@pytest.mark.parametrize("before, after", [("a\r\nb\x0cc\n", "a\r\nb\x0cd\n"), ("a\nb", "a\nc"), ("a", "a\n")])
def test_patch_takes_the_diff(tmp_path: Path, before: str, after: str) -> None:
    """`patch` applies the diff with any line endings."""
    file = tmp_path / "r.yaml"
    file.write_bytes(before.encode())
    (report,) = diff_texts({"r.yaml": before}, {"r.yaml": after}, "1", "2")
    subprocess.run(["patch", "--binary", str(file)], input=report["diff"].encode(), check=True, capture_output=True)
    assert file.read_bytes() == after.encode()
