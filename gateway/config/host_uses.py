"""Where rules send what they name of this host: environment variables, credential files and templates.

Who can write to Redis can have gateways take rules over. Such rules send a credential where the rule files on this disk
send it, and nowhere else: to the same address, with the same TLS; outside of engines, they have it in the same place.
"""

from __future__ import annotations

import os.path
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from gateway.config.engine_specs import EngineSpec, TlsSpec
from gateway.config.rules import LoadedRules
from gateway.yaml.nodes import Items, Map, Node, Scalar, read_yaml
from gateway.yaml.problems import Location, Problem

_VARIABLE = re.compile("\0(.*?)\0")
_FILE_KEYS = ("file", "chat_template", "token", "tokenizer")


class HostUse(NamedTuple):
    """A variable or a file, and the address or the place in the rules that it goes to."""

    what: str
    where: str
    is_address: bool = False
    tls: TlsSpec = TlsSpec()


class _AsWritten(Mapping[str, str]):
    """Has the name of each variable as its value, so that a text says which it names."""

    def __getitem__(self, name: str) -> str:
        return f"\0{name}\0"

    def __iter__(self) -> Iterator[str]:
        return iter(())

    def __len__(self) -> int:
        return 0


def foreign_uses(loaded: LoadedRules, on_disk: LoadedRules) -> list[Problem]:
    """What rules of another gateway send where the rule files on this disk do not send it; both are valid."""
    known = host_uses(on_disk)
    cure = "no rule file on this disk does; write it into the rule files, or activate the rules at each gateway"
    found: dict[tuple[Location, str], Problem] = {}
    for use, place in host_uses(loaded).items():
        if use not in known:
            where = "this address" if use.is_address else use.where  # which may have the variable in it
            message = f"rules of another gateway may not send {use.what} to {where}: {cure}"
            found[place, message] = Problem(place, message)
    return list(found.values())


def host_uses(loaded: LoadedRules) -> dict[HostUse, Location]:
    """All uses, each with a place."""
    assert loaded.rules is not None
    found: dict[HostUse, Location] = {}
    for file, text in loaded.texts.items():
        root = read_yaml(text.removeprefix("\ufeff"), file, _AsWritten(), [])
        for section, entry in root.entries.items() if isinstance(root, Map) else ():
            if section == "engines" and isinstance(entry.node, Map):
                for name, each in entry.node.entries.items():
                    found = _of_engine(each.node, loaded.rules.engines[name]) | found
            else:
                found = {
                    HostUse(_shown(node.text), ".".join(path)): node.location
                    for path, node in _scalars(entry.node, (section,))
                    if _VARIABLE.search(node.text)
                } | found
    return found


def _of_engine(node: Node, engine: EngineSpec) -> dict[HostUse, Location]:
    addresses, activator = _addresses(engine), engine.activator
    found: dict[HostUse, Location] = {}
    for path, scalar in _scalars(node, ("",)):
        is_activators = path[1:2] == ("activator",) and activator is not None
        where, tls = ([activator.url], activator.tls) if is_activators and activator else (addresses, engine.tls)
        for what in _named(path[-1], scalar):
            found |= {HostUse(what, address, True, tls): scalar.location for address in where}
    return found


def _addresses(engine: EngineSpec) -> list[str]:
    """Where the engine's fields and prompts go: its endpoints, and other ports of theirs that have metrics or lists of
    models."""
    found = []
    for endpoint in engine.endpoints:
        name = f" as {endpoint.host}" if endpoint.host is not None else ""
        found += [endpoint.url + name, *([f"grpc://{endpoint.grpc}"] if endpoint.grpc is not None else [])]
        for path in (engine.metrics.path, engine.load.path, engine.models.path):
            if path is not None and path.startswith(":"):
                found.append(f"port {path[1:].partition('/')[0]} of {endpoint.url}")
    # Sources find the addresses, and one of Kubernetes sends its token to the server that its label names
    found += [f"{source.scheme} of {source.label} by {','.join(source.servers)}" for source in engine.sources]
    return found


def _named(key: str, scalar: Scalar) -> list[str]:
    """What a value of an engine names."""
    found = [f"${{{name}}}" for name in _VARIABLE.findall(scalar.text)]
    if key == "env":
        found.append(f"${{{_shown(scalar.text)}}}")
    elif key in _FILE_KEYS:
        found.append(os.path.normpath(Path(scalar.location.file).parent.absolute() / _shown(scalar.text)))
    return found


def _shown(text: str) -> str:
    return _VARIABLE.sub(r"${\1}", text)


def _scalars(node: Node, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Scalar]]:
    """Each value with the keys above it; those of a list have the same."""
    if isinstance(node, Scalar):
        yield path, node
    elif isinstance(node, Items):
        for each in node.nodes:
            yield from _scalars(each, path)
    elif isinstance(node, Map):
        for key, entry in node.entries.items():
            yield from _scalars(entry.node, (*path, key))
