"""What a reader copies from the pages: files and commands, in their order."""

from __future__ import annotations

import re
import shlex
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass

from tests.support.child import REPOSITORY

# What a line of an indented block begins with if it is a command.
PROGRAMS = (
    *("pointsman", "curl", "pip", "python", "python3", "pytest", "docker", "kubectl", "helm", "echo", "brew", "sudo"),
    *("redis-server", "apt", "source", "cd", "xcode-select", "cp", "mkdir", "prometheus"),
)
_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_INDENTED = re.compile(r"(?:^    \S.*\n(?:^ {4,}\S.*\n)*)+", re.MULTILINE)
_FILE = re.compile(r"# ([\w-]+\.yaml)\b")
_VARIABLE = re.compile(r"^(?:[A-Z_]+=\S+|app=.*) ")


@dataclass(frozen=True, slots=True)
class Command:
    """One command, in one line, without its comment."""

    page: str
    text: str

    @property
    def words(self) -> list[str]:
        return shlex.split(self.text)


@dataclass(frozen=True, slots=True)
class NamedFile:
    """A block whose first line names it."""

    name: str
    text: str


def pages() -> list[str]:
    listed = subprocess.check_output(["git", "ls-files", "*.md"], cwd=REPOSITORY, text=True).split()
    return [name for name in listed if name != "CHANGELOG.md"]


def parts(page: str) -> Iterator[Command | NamedFile]:
    """The commands and the files of a page, as they follow each other."""
    text = (REPOSITORY / page).read_text()
    blocks = [(found.start(), found[1], found[2]) for found in _FENCE.finditer(text)]
    rest = _FENCE.sub(lambda found: "\n" * len(found[0]), text)
    blocks += [(found.start(), "indented", found[0]) for found in _INDENTED.finditer(rest)]
    for _, language, block in sorted(blocks):
        if language == "yaml" and (name := _FILE.match(block)):
            yield NamedFile(name[1], block)
        elif language in ("sh", "bash", "console"):
            yield from (Command(page, text) for text in whole_commands(block))
        elif language == "indented":
            yield from (Command(page, text) for text in whole_commands(block) if _is_command(text))


def whole_commands(block: str) -> Iterator[str]:
    """Whole commands: lines are joined where a backslash or an open quotation asks for it."""
    command = ""
    for line in block.splitlines():
        command += line.strip()
        if command.endswith("\\"):
            command = command[:-1]
            continue
        try:
            words = shlex.split(command, comments=True)
        except ValueError:
            command += " "
            continue
        if words:
            yield re.sub(r"\s+#\s.*$", "", command)
        command = ""
    assert not command, f"a quotation does not end: {command}"


def _is_command(text: str) -> bool:
    first = _VARIABLE.sub("", text).split()[0]
    return first in PROGRAMS or ("/" in first and not first.startswith(("/", "http")))
