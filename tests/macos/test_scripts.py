"""The scripts run in macOS's bash, which is 3.2 (2007)."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.child import REPOSITORY

# Features of bash 4.0 and later, each with an example. Source: the CHANGES and NEWS of bash.
NEWER = {
    "mapfile, readarray (4.0)": (r"\b(mapfile|readarray)\b", "mapfile -t lines"),
    "associative arrays (4.0)": (r"\b(declare|local|typeset)\s+-\w*A", "declare -A table"),
    "letters' case (4.0)": (r"\$\{\w+(\[[^]]*\])?(\^\^?|,,?)[^}]*\}", "echo ${name,,}"),
    "both streams into a pipe (4.0)": (r"\|&", "make |& tee log"),
    "both streams appended (4.0)": (r"&>>", "make &>> log"),
    "coproc (4.0)": (r"^\s*coproc\b", "coproc cat"),
    "case that falls through (4.0)": (r";;?&\s*$", "a) echo a ;;&"),
    "ranges with a step (4.0)": (r"\{\w+\.\.\w+\.\.\w+\}", "echo {1..9..2}"),
    "globstar, lastpipe, inherit_errexit (4.0)": (
        r"shopt\s+-s\s+(globstar|lastpipe|inherit_errexit)",
        "shopt -s lastpipe",
    ),
    "descriptors in variables (4.1)": (r"\{\w+\}[<>]", "exec {log}> file"),
    "BASHPID, EPOCHSECONDS, SRANDOM (4.0)": (r"\$\{?(BASHPID|EPOCH\w+|SRANDOM)\b", "echo $BASHPID"),
    "test -v (4.2)": (r"(\[|test)\s+(!\s+)?-v\s", "[ -v name ]"),
    "times by printf (4.2)": (r"%\([^)]*\)T", "printf '%(%F)T' -1"),
    "negative indices (4.3)": (r"\$\{\w+\[-\d", "echo ${names[-1]}"),
    "names of names (4.3)": (r"\b(declare|local|typeset)\s+-\w*n\b", "local -n other=$1"),
    "wait -n (4.3)": (r"\bwait\s+-[nfp]", "wait -n"),
    "transformations (4.4)": (r"\$\{\w+(\[[^]]*\])?@\w\}", "echo ${name@Q}"),
    "local - (4.4)": (r"\blocal\s+-(\s|$)", "local -"),
}
# With `set -u`, bash before 4.4 treats an empty array as unbound, unless it is written ${name[@]+"${name[@]}"}.
EMPTY = re.compile(r"^\s*(?:local\s+)?(\w+)=\(\)", re.MULTILINE)


def scripts() -> list[Path]:
    found = [path for folder in ("scripts", ".ci") for path in (REPOSITORY / folder).iterdir() if path.is_file()]
    return [path for path in found if path.suffix == ".sh" or path.read_bytes().startswith(b"#!/usr/bin/env bash\n")]


def too_new(text: str) -> list[str]:
    """The features of a script that bash 3.2 lacks or treats differently."""
    code = re.sub(r"(^|\s)#.*$", "", text, flags=re.MULTILINE)
    found = [name for name, (pattern, _) in NEWER.items() if re.search(pattern, code, re.MULTILINE)]
    for array in set(EMPTY.findall(code)):
        guarded = code.replace(f'${{{array}[@]+"${{{array}[@]}}"}}', "")
        if f"{{{array}[@]}}" in guarded:
            found.append(f"the array {array}, which may be empty, without a guard")
    return found


@pytest.mark.parametrize("script", scripts(), ids=lambda path: path.name)
def test_scripts_take_nothing_that_bash_3_2_lacks(script: Path) -> None:
    """Scripts use neither commands nor expansions that bash 3.2 lacks, and guard arrays that may be empty."""
    assert too_new(script.read_text()) == []


@pytest.mark.parametrize("name", NEWER)
def test_what_is_newer_is_found(name: str) -> None:
    """Each example matches its pattern, except in a comment."""
    _, example = NEWER[name]
    assert too_new(f"true\n{example}\n") == [name]
    assert too_new(f"true # {example}\n") == []


def test_an_unguarded_array_is_found() -> None:
    """`running=()` and then "${running[@]}" is an error in bash 3.2 under set -u."""
    assert too_new('all=()\nkill "${all[@]}"\n') == ["the array all, which may be empty, without a guard"]
    assert too_new('all=()\nkill ${all[@]+"${all[@]}"}\n') == []


@pytest.mark.parametrize("script", scripts(), ids=lambda path: path.name)
def test_bash_reads_the_scripts(script: Path) -> None:
    """Scripts parse in bash 3.2 if POINTSMAN_BASH_3_2 names one, else in the installed bash."""
    bash = os.environ.get("POINTSMAN_BASH_3_2") or shutil.which("bash") or "bash"
    done = subprocess.run([bash, "-n", str(script)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
