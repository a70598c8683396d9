"""The house: imports only point down, nothing goes in circles, and the pure rooms stay pure."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[1]

# Floors from the ground up. A room may use itself, and every room on a lower floor.
FLOORS = {
    "gateway.protocol": 0,
    "gateway.yaml": 0,
    "gateway.options": 1,
    "gateway.wire": 1,
    "gateway.net": 2,
    "gateway.redis": 3,
    "gateway.config": 3,
    "gateway.auth": 4,
    "gateway.events": 4,
    "gateway.routing": 4,
    "gateway.sessions": 4,
    "gateway.upstream": 4,
    "gateway.observability": 4,
    "gateway.conversations": 4,
    "gateway.hooks": 4,
    "gateway.limits": 4,
    "gateway.rule_versions": 4,
    "gateway.shadow.comparison": 4,
    "gateway.dataplane": 5,
    "gateway.discovery": 5,  # reports what observability shows
    "gateway.dry_run": 6,
    "gateway.statistics": 5,  # of what observability counts and config bounds
    "gateway.api_description": 6,
    "gateway.control": 6,
    "gateway.experiments": 6,  # judges by statistics, shares by redis; rules are written by who hands that in
    "gateway.worker": 7,
    "gateway.supervision": 7,
    "gateway.shadow": 7,
    "gateway.admin": 8,
    "gateway.demo": 8,
    "gateway.epp": 9,  # its HTTP port is served as the admin API is
    "gateway.service": 8,
    "gateway.cli": 10,
    "gateway.__main__": 11,
}
# Engines are services of their own: they share the gateway's language, and nothing else of it.
ENGINES_USE = {
    *("gateway.protocol", "gateway.wire", "gateway.yaml", "gateway.net", "gateway.redis"),
    "gateway.options",  # of the one command line
}
ENGINE_FLOORS = {
    "engines.core": 0,
    "engines.samples": 1,
    "engines.state": 1,
    "engines.ipc": 1,
    "engines.paged": 2,  # the language models' engine: it knows no host
    "engines.scheduling": 3,
    "engines.repository": 3,
    "engines.backends": 3,  # in the processes of instances
    "engines.runner": 4,  # what runs there
    "engines.instances": 4,  # and who starts it
    "engines.host": 5,
    "engines.convert": 5,
    "engines.analyze": 6,
    "engines.doctor": 6,
    "engines.fleet": 6,
    "engines.cli": 7,
    "engines.ray_app": 8,  # runs commands
    "engines.__main__": 8,
}
# Floors inside a package, by the package that a module is in.
INNER_FLOORS = {
    "gateway.protocol": {
        "gateway.protocol.protobuf": 0,
        "gateway.protocol": 1,
        "gateway.protocol.conversion": 2,
        "gateway.protocol.mlserver": 3,
        "gateway.protocol.tfserving": 3,
        "gateway.protocol.torchserve": 3,
        "gateway.protocol.llm": 4,
    },
    # what a request passes: the values all share, the ways to an engine, the bridges between them, the choice of a
    # handler, and the servers on top
    "gateway.dataplane": {
        "gateway.dataplane.context": 0,
        "gateway.dataplane.attempts": 1,
        "gateway.dataplane.hooks": 1,
        "gateway.dataplane.mirroring": 1,
        "gateway.dataplane.translation": 2,
        "gateway.dataplane.conversation": 3,
        "gateway.dataplane.grpc": 3,
        "gateway.dataplane.rest": 3,
        "gateway.dataplane.protocol_bridge": 4,
        "gateway.dataplane.dispatch": 5,
        "gateway.dataplane": 6,
    },
    # the interface and what all backends use; a backend in the process of an instance uses no other, but for CoreML's
    # cache
    "engines.backends": {
        "engines.backends": 0,
        "engines.backends.coreml": 1,
        "engines.backends.paged": 1,
        "engines.backends.python": 1,
        "engines.backends.pytorch": 1,
        "engines.backends.onnxruntime": 2,
    },
    "engines.repository": {"engines.repository.config": 0, "engines.repository": 1},
    # base modules, fronts, and the process on top
    "engines.host": {
        "engines.host": 0,
        "engines.host.grpc": 1,
        "engines.host.openai": 1,
        "engines.host.rest": 2,
        "engines.host.server": 3,
    },
    "engines.paged": {
        "engines.paged.base": 0,
        "engines.paged.ops": 1,
        "engines.paged.text": 1,
        "engines.paged.ops.reference": 2,
        "engines.paged.sampling": 2,
        "engines.paged.ops.metal": 3,
        "engines.paged.ops.native": 3,
        "engines.paged.model": 3,
        "engines.paged.cache": 4,
        "engines.paged.weights": 4,
        "engines.paged.scheduling": 5,
        "engines.paged.kv_store": 6,
        "engines.paged.runner": 6,
        "engines.paged.generation": 7,
        "engines.paged": 8,
        "engines.paged.bench": 9,
    },
}


# Bytes and facts in, values out. What tells the time, throws dice or reaches outside comes in as an argument.
PURE = ["gateway.protocol", "gateway.wire", "gateway.routing", "gateway.statistics"]
ASKS_NOBODY = [*PURE, "engines.scheduling"]
OUTSIDE = {
    *("time", "datetime", "random", "secrets", "uuid"),
    *("os", "sys", "io", "pathlib", "tempfile", "shutil", "subprocess", "signal", "logging"),
    *("asyncio", "threading", "concurrent", "multiprocessing", "queue", "sched"),
    *("socket", "ssl", "select", "selectors", "http", "urllib.request", "socketserver", "ftplib", "smtplib"),
}
OTHERS_WORK = {"orjson", "httptools", "hpack", "jinja2", "google"}  # parsers, without input or output of their own


def modules() -> dict[str, Path]:
    found = {}
    for package in ("gateway", "engines", "scripts"):
        for path in (REPOSITORY / package).rglob("*.py"):
            if "demo/models" in path.as_posix() or "samples/models" in path.as_posix():
                continue  # Triton models
            name = ".".join(path.relative_to(REPOSITORY).with_suffix("").parts)
            found[name.removesuffix(".__init__")] = path
    return found


KNOWN = modules()
PRODUCT = [module for module in KNOWN if not module.startswith("scripts")]


def room(module: str) -> str:
    """The package that has a floor: the deepest one that is listed, else the top-level one."""
    parts = module.split(".")
    prefixes = [".".join(parts[:length]) for length in range(len(parts), 2, -1)]
    return next((name for name in prefixes if name in FLOORS or name in ENGINE_FLOORS), ".".join(parts[:2]))


def imported(path: Path) -> set[str]:
    """The modules that a file imports, wherever in it: of `from a import b` it is `a.b` where that is one, else `a`."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0 and node.module, f"{path}: line {node.lineno} imports by a relative name"
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= {name if name in KNOWN else node.module for name in names}
    return found


IMPORTED = {module: imported(path) for module, path in KNOWN.items()}


def imports(module: str) -> set[str]:
    """The modules of ours that a module imports."""
    return IMPORTED[module] & KNOWN.keys()


def pure_modules(package: str) -> list[str]:
    return [module for module in sorted(KNOWN) if module == package or module.startswith(package + ".")]


@pytest.mark.parametrize("house, floors", [("gateway.", FLOORS), ("engines.", ENGINE_FLOORS)])
def test_every_room_has_a_floor(house: str, floors: dict[str, int]) -> None:
    """A new package must say on which floor it stands."""
    assert {room(module) for module in KNOWN if module.startswith(house)} == floors.keys()


@pytest.mark.parametrize("module", sorted(module for module in PRODUCT if "." in module))
def test_imports_point_down(module: str) -> None:
    """A module imports from its own package, or from a lower floor."""
    house = module.partition(".")[0]
    floors = FLOORS if house == "gateway" else ENGINE_FLOORS
    rooms = {room(other) for other in imports(module) if other.startswith(house)} - {room(module)}
    assert not {other for other in rooms if floors.get(other, len(floors)) >= floors[room(module)]}


def test_engines_are_services_of_their_own() -> None:
    """An engine knows the gateway's protocol and wire, and the gateway knows engines by their addresses."""
    for module in PRODUCT:
        uses = {room(other) for other in imports(module)}
        if module.startswith("engines"):
            assert {used for used in uses if used.startswith("gateway")} <= ENGINES_USE, module
        else:
            assert not {used for used in uses if used.startswith("engines")}, module


def test_no_module_imports_itself_in_the_end() -> None:
    """There are no circles, not even inside a package."""
    finished: set[str] = set()

    def walk(module: str, way: tuple[str, ...]) -> None:
        assert module not in way, " -> ".join((*way[way.index(module) :], module))
        if module not in finished:
            for other in imports(module):
                walk(other, (*way, module))
            finished.add(module)

    for module in KNOWN:
        walk(module, ())


def package_of(module: str) -> str:
    return module if KNOWN[module].name == "__init__.py" else module.rpartition(".")[0]


def test_packages_import_each_other_in_one_direction() -> None:
    """No package imports itself by way of others."""
    uses: dict[str, set[str]] = {package_of(module): set() for module in KNOWN}
    for module in KNOWN:
        uses[package_of(module)] |= {package_of(other) for other in imports(module)} - {package_of(module)}

    def reached(package: str) -> set[str]:
        seen: set[str] = set()
        queue = [package]
        while queue:
            new = uses[queue.pop()] - seen
            seen |= new
            queue += new
        return seen

    assert not {package for package in uses if package in reached(package)}


@pytest.mark.parametrize("house", INNER_FLOORS)
def test_imports_inside_a_package_point_down(house: str) -> None:
    """A module imports from its own inner package, or from one on a lower floor."""
    floors = INNER_FLOORS[house]
    inside = {module: package_of(module) for module in KNOWN if f"{module}.".startswith(f"{house}.")}
    assert set(inside.values()) == floors.keys()
    wrong = {
        (module, other)
        for module, package in inside.items()
        for other in imports(module) & inside.keys()
        if inside[other] != package and floors[inside[other]] >= floors[package]
    }
    assert not wrong


@pytest.mark.parametrize("module", [module for package in ASKS_NOBODY for module in pure_modules(package)])
def test_pure_modules_ask_nobody(module: str) -> None:
    """They read no clock, throw no dice and touch nothing outside; of other people's work they use two parsers."""
    names = {name for name in IMPORTED[module] if not name.startswith(("gateway", "engines"))}
    assert not {name for name in names if name in OUTSIDE or name.partition(".")[0] in OUTSIDE}
    assert {name.partition(".")[0] for name in names} - set(sys.stdlib_module_names) <= OTHERS_WORK


def loaded_by(*names: str) -> set[str]:
    """The packages that are loaded with these modules, in an interpreter of their own."""
    script = (
        f"import importlib, sys\nbefore = set(sys.modules)\n"
        f"for name in {names!r}:\n    importlib.import_module(name)\nprint(*sys.modules.keys() - before)"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=REPOSITORY, capture_output=True, text=True, check=True)
    return {name.partition(".")[0] for name in done.stdout.split()}


@pytest.mark.parametrize("package", PURE)
def test_the_pure_packages_are_pure(package: str) -> None:
    """Whatever they load loads no network, no event loop, no YAML, no framework either."""
    network = {"socket", "_socket", "ssl", "_ssl", "select", "selectors", "http", "email"}
    loops = {"asyncio", "_asyncio", "uvloop", "concurrent", "multiprocessing", "subprocess"}
    if package != "gateway.wire":  # hpack has a logger, which is never asked
        loops |= {"threading", "logging"}
    frameworks = {"yaml", "redis", "httpx", "fastapi", "pydantic", "numpy", "torch", "grpc"}
    loaded = loaded_by(*pure_modules(package))
    assert not loaded & (network | loops | frameworks)
    assert "gateway" in loaded


def test_a_worker_loads_only_what_it_needs() -> None:
    """The data-plane process carries no web framework, no client and no command line: its memory is for requests."""
    loaded = loaded_by("gateway.worker.process")
    assert {"gateway", "asyncio"} <= loaded
    frameworks = {"fastapi", "starlette", "pydantic", "uvicorn", "httpx", "typer", "rich"}
    assert not loaded & (frameworks | {"yaml", "redis", "numpy", "torch", "grpc", "tritonclient", "engines"})


def test_an_instance_loads_only_what_it_needs() -> None:
    """The process of a model's instances loads no event loop, no server and no client of Redis: a host starts many."""
    loaded = loaded_by("engines.runner.process", "engines.backends.python.model")
    assert {"engines", "numpy"} <= loaded
    assert not loaded & {"asyncio", "redis", "hiredis", "httptools", "orjson", "typer", "pydantic"}
