"""The house: imports only point down, nothing goes in circles, and the pure rooms stay pure."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[1]

# Floors from the ground up. A room may use its own floor's own package, and everything below.
FLOORS = {
    "gateway.protocol": 0,
    "gateway.wire": 1,
    "gateway.config": 1,
    "gateway.routing": 2,
    "gateway.upstream": 2,
    "gateway.observability": 2,
    "gateway.dataplane": 3,
    "gateway.control": 4,
    "gateway.worker": 5,
    "gateway.admin": 5,
    "gateway.supervision": 6,
    "gateway.demo": 6,
    "gateway.cli": 7,
    "gateway.__main__": 8,
}


def modules() -> dict[str, Path]:
    found = {}
    for path in (REPOSITORY / "gateway").rglob("*.py"):
        if "demo/models" in path.as_posix():
            continue  # Triton models
        name = ".".join(path.relative_to(REPOSITORY).with_suffix("").parts)
        found[name.removesuffix(".__init__")] = path
    return found


def room(module: str) -> str:
    return ".".join(module.split(".")[:2])


def imports(path: Path, known: dict[str, Path]) -> set[str]:
    """The modules of ours that a file imports, wherever in it."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names if alias.name in known}
        elif isinstance(node, ast.ImportFrom) and node.module in known:
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= (names & known.keys()) or {node.module}
    return found


KNOWN = modules()
IMPORTS = {module: imports(path, KNOWN) for module, path in KNOWN.items()}


def test_every_room_has_a_floor() -> None:
    """A new package must say on which floor it stands."""
    assert {room(module) for module in KNOWN} - {"gateway"} == FLOORS.keys()


@pytest.mark.parametrize("module", sorted(module for module in KNOWN if module != "gateway"))
def test_imports_point_down(module: str) -> None:
    """A module imports from its own package, or from a lower floor."""
    up = {
        other
        for other in IMPORTS[module]
        if room(other) != room(module) and FLOORS[room(other)] >= FLOORS[room(module)]
    }
    assert not up


def test_no_module_imports_itself_in_the_end() -> None:
    """There are no circles, not even inside a package."""
    finished: set[str] = set()

    def walk(module: str, way: tuple[str, ...]) -> None:
        assert module not in way, " -> ".join((*way[way.index(module) :], module))
        if module not in finished:
            for other in IMPORTS[module]:
                walk(other, (*way, module))
            finished.add(module)

    for module in KNOWN:
        walk(module, ())


def loaded_by(statement: str) -> set[str]:
    script = f"import sys\n{statement}\nprint(*sorted(sys.modules))"
    done = subprocess.run([sys.executable, "-c", script], cwd=REPOSITORY, capture_output=True, text=True, check=True)
    return set(done.stdout.split())


@pytest.mark.parametrize("package", ["gateway.protocol", "gateway.wire", "gateway.routing"])
def test_the_pure_packages_are_pure(package: str) -> None:
    """Bytes in, values out: no network, no event loop, no YAML, no framework is even loaded."""
    names = [module for module in KNOWN if module == package or module.startswith(package + ".")]
    loaded = loaded_by("\n".join(f"import {name}" for name in names))
    impure = {
        "asyncio",
        "socket",
        "_socket",
        "ssl",
        "selectors",
        "uvloop",
        "yaml",
        "httpx",
        "fastapi",
        "torch",
        "redis",
    }
    assert not loaded & impure


def test_a_worker_loads_only_what_it_needs() -> None:
    """The data-plane process carries no web framework, no client and no command line: its memory is for requests."""
    loaded = loaded_by("import gateway.worker")
    heavy = {"fastapi", "starlette", "uvicorn", "httpx", "typer", "rich", "prometheus_client", "yaml", "numpy"}
    assert not loaded & heavy
