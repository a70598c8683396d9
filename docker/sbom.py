"""Prints a software bill of materials: CycloneDX 1.5 JSON of the packages that this Python sees.

Images have theirs in /opt/pointsman/sbom.cdx.json. The same packages give the same text.
"""

from __future__ import annotations

import json
import re
import uuid
from importlib.metadata import Distribution, distributions
from typing import Any

_ROOT = "pointsman"
_NAMESPACE = uuid.uuid5(uuid.NAMESPACE_URL, "https://cyclonedx.org/pointsman")


def key_of(name: str) -> str:
    """The normalized name (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()


def reference(package: Distribution) -> str:
    return f"pkg:pypi/{key_of(package.name)}@{package.version}"


def component(package: Distribution) -> dict[str, Any]:
    fields = package.metadata
    found: dict[str, Any] = {
        "type": "application" if key_of(package.name) == _ROOT else "library",
        "bom-ref": reference(package),
        "name": package.name,
        "version": package.version,
        "purl": reference(package),
    }
    expressions = fields.get_all("License-Expression") or []
    classified = [line.rpartition(" :: ")[2] for line in fields.get_all("Classifier") or () if "License ::" in line]
    if expressions:
        found["licenses"] = [{"expression": expressions[0]}]
    elif classified:
        found["licenses"] = [{"license": {"name": name}} for name in classified]
    return found


def needs(package: Distribution) -> set[str]:
    """What it declares to need, with extras of its own left out."""
    lines = [line for line in package.requires or () if "extra ==" not in line]
    return {key_of(re.split(r"[^A-Za-z0-9._-]", line.strip(), maxsplit=1)[0]) for line in lines}


def bill(packages: dict[str, Distribution]) -> dict[str, Any]:
    components = [component(packages[name]) for name in sorted(packages)]
    graph = [
        {"ref": reference(package), "dependsOn": sorted(reference(packages[n]) for n in needs(package) & set(packages))}
        for _, package in sorted(packages.items())
    ]
    root = [each for each in components if key_of(each["name"]) == _ROOT]
    document: dict[str, Any] = {
        "$schema": "http://cyclonedx.org/schema/bom-1.5.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "serialNumber": f"urn:uuid:{uuid.uuid5(_NAMESPACE, json.dumps([components, graph]))}",
        "version": 1,
        "metadata": {"component": root[0]} if root else {},
        "components": [each for each in components if each not in root],
        "dependencies": graph,
    }
    return document


if __name__ == "__main__":
    print(json.dumps(bill({key_of(each.name): each for each in distributions()}), indent=1))
