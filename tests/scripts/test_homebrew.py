"""The Homebrew formula: what its text says, and its blocks in a real Ruby with a stand-in for Homebrew's classes."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from typer.main import get_command

from gateway.cli.app import make_app
from scripts.homebrew.formula import FORMULA, formula, with_resources
from tests.docker.test_locks import holds, locked
from tests.support.child import REPOSITORY

STUB = Path(__file__).with_name("formula_stub.rb")
MAC = {
    "sys_platform": "darwin",
    "platform_machine": "arm64",
    "python_version": "3.13",
    "python_full_version": "3.13.0",
    "platform_python_implementation": "CPython",
    "implementation_name": "cpython",
}
RESOURCE = re.compile(r'resource "([^"]+)" do\n    url "([^"]+)"\n    sha256 "([0-9a-f]{64})"\n  end')


def test_resources_are_the_locked_packages() -> None:
    """Each resource is the sdist of a locked package, by its digest; all dependencies on a Mac are there."""
    found = {name: (url, digest) for name, url, digest in RESOURCE.findall(FORMULA.read_text())}
    hashes = {canonicalize_name(each.name): (each, digests) for each, digests in locked("gateway")}
    for name, (url, digest) in found.items():
        requirement, digests = hashes[canonicalize_name(name)]
        assert f"sha256:{digest}" in digests
        assert url.startswith("https://files.pythonhosted.org/packages/")
        assert url.endswith(f"-{str(requirement.specifier).removeprefix('==')}.tar.gz")
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    needed = [requirement for line in project["dependencies"] if holds(requirement := Requirement(line), MAC)]
    assert {canonicalize_name(each.name) for each in needed} <= found.keys()


def test_a_formula_of_an_sdist(tmp_path: Path) -> None:
    """The script writes the place and the digest of an sdist, and replaces the packages."""
    (sdist := tmp_path / "pointsman-0.1.0.tar.gz").write_bytes(b"data")
    digest = hashlib.sha256(b"data").hexdigest()
    lines = [line for line in formula(sdist).splitlines() if line.startswith(("  url", "  sha256"))]
    assert lines == [f'  url "{sdist.as_uri()}"', f'  sha256 "{digest}"']
    assert '  url "https://x.example/p.tar.gz"\n' in formula(sdist, "https://x.example/p.tar.gz")
    block = '  resource "one" do\n    url "u"\n    sha256 "d"\n  end\n'
    changed = with_resources(FORMULA.read_text(), block)
    assert changed.count("  resource ") == 1 and f"{block}\n  def install" in changed
    assert RESOURCE.findall(with_resources(changed, "")) == []


@pytest.mark.timeout(120)
def test_a_real_ruby_reads_the_formula_and_runs_its_test(tmp_path: Path) -> None:
    """It has what Homebrew asks of a formula; its service runs a command with options that exist; its test passes."""
    if (ruby := shutil.which("ruby")) is None:
        pytest.skip("ruby is not installed (Debian: apt install ruby)")
    assert subprocess.run([ruby, "-c", str(FORMULA)], capture_output=True, check=False).returncode == 0
    (bin_folder := tmp_path / "bin").mkdir()
    (program := bin_folder / "pointsman").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m gateway "$@"\n')
    program.chmod(0o755)
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY), "POINTSMAN_REDIS": "off"}
    command = [ruby, str(STUB), str(FORMULA), str(bin_folder), str(tmp_path)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    declared: dict[str, Any] = json.loads(done.stdout.splitlines()[0])
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    assert len(declared["desc"]) < 80 and not declared["desc"].startswith(("A ", "An ", "The "))
    assert declared["license"] == project["license"]
    assert declared["url"].endswith(f"/pointsman-{project['version']}.tar.gz")
    assert {"python@3.13", "redis", "rust"} <= set(declared["depends_on"])
    assert len(declared["resources"]) == len(RESOURCE.findall(FORMULA.read_text()))
    program_path, command_name, *options = declared["service"]["run"]
    assert (program_path, command_name) == ("/opt/homebrew/opt/pointsman/bin/pointsman", "serve")
    group: Any = get_command(make_app())
    known = {name for parameter in group.commands["serve"].params for name in parameter.opts}
    assert {option for option in options if option.startswith("--")} <= known
    assert declared["service"]["keep_alive"] is True
