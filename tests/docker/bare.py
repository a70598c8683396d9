"""Dockerfiles without Docker: each instruction runs in a bare directory that stands for the image's root.

An image writes to few known paths, which are moved under that directory; the base image's programs are those that run
the tests. This shows that the commands work with the files of the build context and need nothing else; it does not show
that the base image exists.
"""

from __future__ import annotations

import fnmatch
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]

# The absolute paths that the images use.
_OWN = re.compile(r"(?<![\w./-])/(?=(?:opt/pointsman|build|state|models|var/lib/pointsman|etc/pointsman)\b)")


@dataclass(frozen=True, slots=True)
class Instruction:
    """One instruction: `flags` are its `--name=value` words, `text` the rest."""

    name: str
    flags: dict[str, str]
    text: str


def read_dockerfile(path: Path) -> list[Instruction]:
    """The instructions, with continued lines joined and comments removed."""
    lines = [line for line in path.read_text().splitlines() if line.strip() and not line.lstrip().startswith("#")]
    found = []
    for line in re.sub(r"\\\n\s*", "", "\n".join(lines)).splitlines():
        name, rest = line.split(None, 1)
        flags: dict[str, str] = {}
        while (flag := re.match(r"--([a-z-]+)=(\S+)\s+", rest)) and name != "CMD":
            flags[flag[1]] = flag[2]
            rest = rest[flag.end() :]
        found.append(Instruction(name, flags, rest))
    return found


def context() -> list[Path]:
    """The files of the build context: .dockerignore excludes everything that it does not name."""
    lines = [line for line in (REPOSITORY / ".dockerignore").read_text().splitlines() if line and line[0] != "#"]
    assert lines[0] == "*"
    kept = [line[1:] for line in lines if line.startswith("!")]
    out = [line.removeprefix("**/") for line in lines[1:] if not line.startswith("!")]
    files = [path for name in kept for path in _files(REPOSITORY / name)]
    return [
        path.relative_to(REPOSITORY)
        for path in files
        if not any(fnmatch.fnmatch(part, pattern) for part in path.parts for pattern in out)
    ]


def _files(path: Path) -> list[Path]:
    return [path] if path.is_file() else [each for each in path.rglob("*") if each.is_file()]


@dataclass
class Image:
    """An image: its root, and how it runs."""

    folder: Path  # of the build
    environment: dict[str, str] = field(default_factory=dict)
    directory: str = "/"
    entrypoint: list[str] = field(default_factory=list)
    command: list[str] = field(default_factory=list)
    healthcheck: list[str] = field(default_factory=list)
    user: str = "root"
    ports: list[str] = field(default_factory=list)

    @property
    def root(self) -> Path:
        return self.folder / "root"

    def placed(self, text: str) -> str:
        """A text with the image's own paths moved under its root."""
        return _OWN.sub(f"{self.root}/", text)

    def argv(self, *arguments: str) -> list[str]:
        """The command with these arguments in place of the image's."""
        return [self.placed(word) for word in [*self.entrypoint, *(arguments or self.command)]]

    def start(self, *arguments: str, **environment: str) -> subprocess.Popen[bytes]:
        argv = self.argv(*arguments)
        program = shutil.which(argv[0], path=self.environment["PATH"])
        assert program is not None, f"{argv[0]} is not in the image"
        return subprocess.Popen(
            [program, *argv[1:]],
            cwd=self.root / self.directory.lstrip("/"),
            env=self.environment | environment,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )

    def is_healthy(self, port: str, real: int) -> bool:
        """The result of the health check, for a program that listens on another port than in a container."""
        argv = [word.replace(f":{port}/", f":{real}/") for word in self.healthcheck]
        done = subprocess.run(argv, env=self.environment, capture_output=True, timeout=120, check=False)
        return done.returncode == 0


def build(dockerfile: Path, folder: Path) -> Image:
    """Run the instructions of all stages; the last stage is the image."""
    tools = _base_image(folder / "base")
    image, stage = Image(folder), ""
    for instruction in read_dockerfile(dockerfile):
        words = instruction.text.split()
        match instruction.name:
            case "FROM":
                if stage:
                    image.root.rename(folder / stage)
                image, stage = Image(folder, _environment(folder, tools)), words[2] if len(words) > 1 else "-"
                image.root.mkdir(parents=True)
            case "ARG" | "ENV":
                for name, value in (word.split("=", 1) for word in shlex.split(instruction.text)):
                    image.environment[name] = image.placed(value.replace("$PATH", image.environment["PATH"]))
            case "WORKDIR":
                image.directory = words[0]
                (image.root / words[0].lstrip("/")).mkdir(parents=True, exist_ok=True)
            case "COPY":
                _copy(image, instruction.flags.get("from", ""), words[:-1], words[-1])
            case "RUN":
                _run(image, instruction.text)
            case "USER":
                image.user = words[0]
            case "EXPOSE":
                image.ports = words
            case "HEALTHCHECK":
                image.healthcheck = json.loads(instruction.text.removeprefix("CMD"))
            case "ENTRYPOINT":
                image.entrypoint = json.loads(instruction.text)
            case "CMD":
                image.command = json.loads(instruction.text)
            case other:
                raise AssertionError(f"{dockerfile.name}: nobody carries out {other} here")
    return image


def _base_image(folder: Path) -> Path:
    """The programs used from the base image: python and pip."""
    folder.mkdir(parents=True)
    for name, words in (("python", ""), ("pip", " -m pip")):
        path = folder / name
        path.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)}{words} "$@"\n')
        path.chmod(0o755)
    return folder


def _environment(folder: Path, tools: Path) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name.startswith("PIP_") or name == "LANG"}
    kept["PIP_NO_COMPILE"] = "1"  # only saves time
    return kept | {"PATH": f"{tools}:/usr/bin:/bin", "HOME": str(folder)}


def _copy(image: Image, stage: str, sources: Sequence[str], target: str) -> None:
    base = image.root / (target if target.startswith("/") else f"{image.directory}/{target}").lstrip("/")
    for source in sources:
        if stage:
            shutil.copytree(image.folder / stage / source.lstrip("/"), base, symlinks=True, dirs_exist_ok=True)
            continue
        files = [path for path in context() if path.is_relative_to(source)]
        assert files, f"{source} is not in the context: .dockerignore leaves it out"
        for path in files:
            is_file = (REPOSITORY / source).is_file()
            place = base / (Path(source).name if is_file else path.relative_to(source))
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(REPOSITORY / path, place)


def _run(image: Image, text: str) -> None:
    done = subprocess.run(
        ["/bin/sh", "-ec", image.placed(text)],
        cwd=image.root / image.directory.lstrip("/"),
        env=image.environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"RUN {text}\n{done.stdout}"
