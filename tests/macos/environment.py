"""The environment of a program on a Mac, as far as Linux can imitate it.

Python lacks what macOS lacks (without/sitecustomize.py), a process may open 256 files, temporary files have long names,
and the C++ compilers are the stubs of a Mac without Apple's Command Line Tools.
"""

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from tests.support.descriptors import MAC_SOFT_LIMIT, soft_limit

WITHOUT = Path(__file__).parent / "without"
TMPDIR_BYTES = 60  # of /var/folders/zz/zyxvpxvq6csfxvn_n0000000000000/T/ it is 49
COMPILERS = ("clang++", "g++", "c++", "clang", "gcc", "cc")
STUB = """#!/bin/sh
echo "xcode-select: note: no developer tools were found at '/Applications/Xcode.app', requesting install." >&2
exit 1
"""


def variables(temporary: Path, programs: Path) -> Mapping[str, str]:
    """The environment variables that differ; the stubs are written to `programs`."""
    for name in COMPILERS:
        (programs / name).write_text(STUB)
        (programs / name).chmod(0o755)
    path = os.pathsep.join(part for part in (str(WITHOUT), os.environ.get("PYTHONPATH", "")) if part)
    return {
        "PYTHONPATH": path,
        "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
        "TMPDIR": f"{temporary}/",
        "XDG_CACHE_HOME": str(programs / "cache"),  # an empty cache of compiled libraries
        "CXX": "",
    }


@contextlib.contextmanager
def mac() -> Iterator[None]:
    """Programs started in this context have the environment of a Mac."""
    random_and_slashes = len("/tmp/" + "12345678" + "/")
    temporary = Path(tempfile.mkdtemp(prefix="mac-".ljust(TMPDIR_BYTES - random_and_slashes, "0"), dir="/tmp"))
    programs = temporary / "bin"
    programs.mkdir()
    before = dict(os.environ)
    os.environ.update(variables(temporary, programs))
    try:
        with soft_limit(MAC_SOFT_LIMIT):
            yield
    finally:
        os.environ.clear()
        os.environ.update(before)
        shutil.rmtree(temporary, ignore_errors=True)
