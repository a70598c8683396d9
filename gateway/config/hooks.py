"""The `hooks:` of a route.

A module is looked for in the rule file's folder, then among installed packages. Hooks are code that runs with the
gateway's rights: rules of the admin API and of other gateways may name those that rule files on this disk name, with
the same options, and no other.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from gateway.config.hook_specs import HookSpec
from gateway.protocol.operations import FLEET_OPERATIONS, Operation
from gateway.yaml.nodes import Entry, Items, Map, Node, Scalar
from gateway.yaml.problems import Location
from gateway.yaml.readers import Reading, expected, record_of

if TYPE_CHECKING:
    from gateway.config.specs import RulesSpec

# Code is short; the text goes to each worker with the rules.
MAX_SOURCE_BYTES = 1024 * 1024

_HOOK = record_of("a hook", HookSpec, preset=("file", "source"))


def read_hooks(node: Node, reading: Reading) -> tuple[HookSpec, ...] | None:
    """Read a list of hooks, in the order in which requests pass them; each is a text or a map."""
    nodes = node.nodes if isinstance(node, Items) else (node,)
    if not nodes:
        reading.error(node.location, "the list is empty")
        return None
    found = [_read_hook(each, reading) for each in nodes]
    return tuple(hook for hook in found if hook is not None) if None not in found else None


def _read_hook(node: Node, reading: Reading) -> HookSpec | None:
    if isinstance(node, Scalar):
        node = Map({"use": Entry(node.location, node)}, node.location)
    if not isinstance(node, Map):
        expected(node, "module:object, or a map with 'use'", reading)
        return None
    spec = _HOOK(node, reading)
    if spec is None:
        return None
    place = node.entries["use"].node.location
    path = module_file(spec.use, place)
    if path is not None:
        spec = replace(spec, file=str(path))
    reading.named_hooks.add(spec.identity)
    if reading.allowed_hooks is not None and spec.identity not in reading.allowed_hooks:
        what = "rules that are no rule files on this disk may use hooks only as those name them, with the same options"
        reading.error(place, f"{spec.use!r}: {what}")
        return None
    return spec if path is None else _with_source(spec, path, place, reading)


def check_hooks(rules: RulesSpec, reading: Reading) -> None:
    """Warn where a route names operations that pass no hooks, since they concern the whole fleet."""
    for route in rules.routes:
        unseen = [name for name in route.match.operation if Operation(name) in FLEET_OPERATIONS]
        if route.hooks and unseen:
            assert route.location is not None
            what = (
                f"route {route.name!r}: its hooks do not see {', '.join(unseen)}, which go to all endpoints of a model"
            )
            reading.warn(route.location, what)


def module_file(use: str, place: Location) -> Path | None:
    """The file of a hook's module in the rule file's folder; None where there is none."""
    module, colon, _ = use.partition(":")
    path = (Path(place.file).parent / Path(*module.split("."))).with_suffix(".py").absolute()
    return path if colon and path.is_file() else None


def _with_source(spec: HookSpec, path: Path, place: Location, reading: Reading) -> HookSpec | None:
    reading.followed_files[str(path)] = None
    try:
        with path.open("rb") as file:
            content = file.read(MAX_SOURCE_BYTES + 1)
        if len(content) > MAX_SOURCE_BYTES:
            raise ValueError(f"it is longer than {MAX_SOURCE_BYTES} bytes")
        source = content.decode("utf-8-sig")
        compile(source, str(path), "exec", dont_inherit=True)
    except SyntaxError as error:
        at = Location(str(path), error.lineno or 1, error.offset or 1)
        reading.error(at, f"hook {spec.use!r} ({place}): {error.msg}")
    except (OSError, ValueError) as error:  # UnicodeDecodeError is one
        why = error.strerror if isinstance(error, OSError) else str(error)
        reading.error(place, f"hook {spec.use!r} cannot be read: {why} ({path})")
    else:
        return replace(spec, source=source)
    return None
