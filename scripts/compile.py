"""Compile the data plane with mypyc: `scripts/compile.py --wheel dist` makes a wheel for this Python and machine.

mypyc makes extension modules of typed Python. The sources stay plain Python: what mypyc needs beyond types is written
into a copy of them (`compiled/sources.py`); what would behave otherwise is refused (`compiled/hazards.py`). It needs a
C compiler, mypy and setuptools; `pip install .` needs none of them and stays pure Python.

`--test` runs tests on a compiled copy of the tree. Without an option, modules are built in place: an interpreter takes
`x.cpython-311-....so` before the `x.py` beside it until `--clean`, and a changed source must be compiled again.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

from compiled.hazards import hazards
from compiled.sources import Edits, Sources

REPOSITORY = Path(__file__).resolve().parent.parent
MODULES = Path(__file__).parent / "compiled" / "modules.txt"
# The tests that pass on a compiled copy. Those that replace parts of a module are marked `pure_python`.
TESTS = ("wire", "net", "routing", "dataplane", "upstream", "sessions", "observability")
# The decorators that the copy imports
RUNTIME_REQUIREMENT = "mypy_extensions>=1.0"

_SUFFIX = sysconfig.get_config_var("EXT_SUFFIX")
# The C compiler runs once per module, as many at a time as there are processors: distutils compiles one after another.
_SETUP = """
from concurrent.futures import ThreadPoolExecutor
from setuptools import setup
from setuptools._distutils.ccompiler import CCompiler
from mypyc.build import mypycify

def compile_all(self, sources, output_dir=None, macros=None, include_dirs=None, debug=0, before=None, after=None,
                depends=None):
    macros, objects, after, options, build = self._setup_compile(output_dir, macros, include_dirs, sources, depends,
                                                                 after)
    arguments = self._get_cc_args(options, debug, before)
    def compile_one(name):
        source, ending = build[name]
        self._compile(name, source, ending, arguments, after, options)
    with ThreadPoolExecutor({jobs}) as pool:
        list(pool.map(compile_one, build))
    return objects

CCompiler.compile = compile_all
options = {{"opt_level": {opt!r}, "debug_level": "0", "multi_file": True}}
arguments = ["--config-file=mypy.toml", "--warn-unreachable", *open("modules").read().split()]
setup(name="gateway", packages=[], ext_modules=mypycify(arguments, **options))
"""


def compiled_modules() -> list[str]:
    lines = [line.partition("#")[0].strip() for line in MODULES.read_text().splitlines()]
    return [line for line in lines if line]


def prepare(root: Path, modules: list[str]) -> None:
    """Write into a copy of the sources what mypyc needs."""
    sources = Sources(root)
    texts = {path: Edits(sources, path).text() for path in modules}
    if found := [*hazards(sources, modules)]:
        raise SystemExit("\n".join(found))
    for path, text in texts.items():
        (root / path).write_bytes(text)


def build(root: Path, modules: list[str], opt: str = "2") -> list[str]:
    """Compile a prepared copy; returns the paths of the extension modules in it."""
    setup = _SETUP.format(opt=opt, jobs=os.cpu_count() or 1)
    (root / "setup_compiled.py").write_text(setup)
    (root / "modules").write_text("\n".join(modules))
    command = [sys.executable, "setup_compiled.py", "-q", "build_ext", "--inplace"]
    subprocess.run(command, cwd=root, check=True)
    return [*_extensions(root)]


def compiled(source: Path, root: Path, modules: list[str], opt: str = "2") -> list[str]:
    """Compile the modules of a tree in an empty folder; returns the paths of the extension modules in it."""
    shutil.copytree(source / "gateway", root / "gateway", ignore=shutil.ignore_patterns("__pycache__", f"*{_SUFFIX}"))
    shutil.copy(source / "pyproject.toml", root / "mypy.toml")  # by another name, which setuptools does not read
    prepare(root, modules)
    return build(root, modules, opt)


def _extensions(root: Path) -> Iterator[str]:
    for path in sorted([*root.glob(f"*__mypyc{_SUFFIX}"), *(root / "gateway").rglob(f"*{_SUFFIX}")]):
        yield path.relative_to(root).as_posix()


def make_wheel(folder: Path, opt: str) -> Path:
    """Make a wheel of this repository with the extension modules beside their sources."""
    with tempfile.TemporaryDirectory() as temporary:
        root = Path(temporary, "compiled")
        root.mkdir()
        pip = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", temporary, str(REPOSITORY)]
        subprocess.run(pip, check=True)
        (pure,) = Path(temporary).glob("*.whl")
        with zipfile.ZipFile(pure) as archive:
            files = {name: archive.read(name) for name in archive.namelist()}
        for path in compiled(REPOSITORY, root, compiled_modules(), opt):
            files[path] = (root / path).read_bytes()
    python = f"cp{sys.version_info.major}{sys.version_info.minor}"
    tag = f"{python}-{python}-{re.sub('[-.]', '_', sysconfig.get_platform())}"
    (info,) = {name.partition("/")[0] for name in files if ".dist-info/" in name}
    lines = files[f"{info}/WHEEL"].decode().replace("Root-Is-Purelib: true", "Root-Is-Purelib: false")
    files[f"{info}/WHEEL"] = re.sub("(?m)^Tag: .*$", f"Tag: {tag}", lines).encode()
    head, blank, readme = files[f"{info}/METADATA"].partition(b"\n\n")
    files[f"{info}/METADATA"] = head + f"\nRequires-Dist: {RUNTIME_REQUIREMENT}".encode() + blank + readme
    del files[f"{info}/RECORD"]
    records = [f"{name},sha256={_digest(data)},{len(data)}" for name, data in files.items()]
    files[f"{info}/RECORD"] = "\n".join([*records, f"{info}/RECORD,,", ""]).encode()
    folder.mkdir(parents=True, exist_ok=True)
    wheel = folder / f"{info.removesuffix('.dist-info')}-{tag}.whl"
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return wheel


def _digest(data: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()


def run_tests(opt: str, tests: list[str]) -> int:
    """Run tests on a compiled copy of the tree; returns pytest's status."""
    with tempfile.TemporaryDirectory() as temporary:
        root = Path(temporary)
        (root / "compiled").mkdir()
        listing = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
        names = subprocess.run(listing, cwd=REPOSITORY, check=True, capture_output=True, text=True).stdout.split("\0")
        for name in filter(None, names):
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(REPOSITORY / name, root / name)
        for path in compiled(REPOSITORY, root / "compiled", compiled_modules(), opt):
            shutil.copy(root / "compiled" / path, root / path)
        shutil.rmtree(root / "compiled")
        command = [sys.executable, "-X", "faulthandler", "-m", "pytest", "-q", *tests]
        return subprocess.run(command, cwd=root, env={**os.environ, "PYTHONPATH": str(root)}, check=False).returncode


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clean", action="store_true", help="remove what a build in place has left, and end")
    parser.add_argument("--wheel", type=Path, metavar="FOLDER", help="make a wheel in this folder instead")
    parser.add_argument("--test", nargs="*", metavar="TEST", help="run these tests on a compiled copy")
    parser.add_argument("--opt", default="2", choices="0123", help="the C compiler's level of optimization [2]")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="an empty folder for the prepared copy, to look at")
    arguments = parser.parse_args()
    if arguments.wheel is not None:
        print(make_wheel(arguments.wheel, arguments.opt))
        return
    if arguments.test is not None:
        sys.exit(run_tests(arguments.opt, arguments.test or [f"tests/{name}" for name in TESTS]))
    for path in _extensions(REPOSITORY):
        (REPOSITORY / path).unlink()
    if arguments.clean:
        return
    with tempfile.TemporaryDirectory() as temporary:
        root = arguments.keep or Path(temporary)
        for path in compiled(REPOSITORY, root, compiled_modules(), arguments.opt):
            shutil.copy(root / path, REPOSITORY / path)


if __name__ == "__main__":
    main()
