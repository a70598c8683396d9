#!/usr/bin/env python3
"""The Homebrew formula of an sdist.

    scripts/homebrew/formula.py dist/pointsman-0.1.0.tar.gz [--url URL] > pointsman.rb
    scripts/homebrew/formula.py --resources

The first prints `pointsman.rb` with the URL and the digest of this sdist; without `--url` Homebrew takes the file where
it is. The second writes the packages of `docker/locks/gateway.txt` that a Mac needs into `pointsman.rb`, with their
sdists' URLs and digests, by uv and the package index; run it after `scripts/lock`.
"""

from __future__ import annotations

import argparse
import hashlib
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
FORMULA = Path(__file__).with_name("pointsman.rb")
PYTHON = "3.13"  # the formula's python@
_RESOURCES = re.compile(r'(  # resources: [^\n]*\n)(?:\n?  resource "[^"]+" do\n(?:    [^\n]*\n)+  end\n)*')


def formula(sdist: Path, url: str | None = None) -> str:
    """The formula of this file."""
    digest = hashlib.sha256(sdist.read_bytes()).hexdigest()
    text = re.sub(r'(?m)^  url ".*"$', f'  url "{url or sdist.resolve().as_uri()}"', FORMULA.read_text(), count=1)
    return re.sub(r'(?m)^  sha256 ".*"$', f'  sha256 "{digest}"', text, count=1)


def with_resources(text: str, resources: str) -> str:
    return _RESOURCES.sub(lambda found: found[1] + resources, text, count=1)


def resources() -> Iterator[str]:
    """A block for each package, at the images' version. Raises: SystemExit where one has no sdist."""
    uv = shutil.which("uv") or str(Path(sys.executable).with_name("uv"))
    with tempfile.TemporaryDirectory() as folder:
        lock = Path(folder) / "pylock.toml"
        command = [uv, "pip", "compile", "--quiet", "pyproject.toml", "--constraints", "docker/locks/gateway.txt"]
        command += ["--python-platform", "aarch64-apple-darwin", "--python-version", PYTHON]
        subprocess.run([*command, "--format", "pylock.toml", "--output-file", str(lock)], cwd=REPOSITORY, check=True)
        packages = tomllib.loads(lock.read_text())["packages"]
    for package in packages:
        if "sdist" not in package:
            raise SystemExit(f"{package['name']} {package['version']} has no sdist")
        url, digest = package["sdist"]["url"], package["sdist"]["hashes"]["sha256"]
        yield f'  resource "{package["name"]}" do\n    url "{url}"\n    sha256 "{digest}"\n  end\n'


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sdist", type=Path, nargs="?")
    parser.add_argument("--url", help="where the sdist is published")
    parser.add_argument("--resources", action="store_true", help="write the packages into pointsman.rb")
    arguments = parser.parse_args()
    if arguments.resources:
        FORMULA.write_text(with_resources(FORMULA.read_text(), "\n".join(resources())))
    elif arguments.sdist is None:
        parser.error("name an sdist: python -m build --sdist makes it")
    else:
        print(formula(arguments.sdist, arguments.url), end="")


if __name__ == "__main__":
    main()
