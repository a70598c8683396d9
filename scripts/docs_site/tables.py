"""The references of metrics and errors, from their tables."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from gateway.observability.exposition import all_metrics
from gateway.protocol.errors import ErrorKind
from scripts.docs_site.pages import Page

METRICS, ERRORS = "reference/metrics", "reference/errors"
CAUSES, CURES = "gateway/README.md", "gateway/guides/troubleshooting.md"
# google.rpc.Code, by number
CODES = (
    *("OK", "CANCELLED", "UNKNOWN", "INVALID_ARGUMENT", "DEADLINE_EXCEEDED", "NOT_FOUND", "ALREADY_EXISTS"),
    *("PERMISSION_DENIED", "RESOURCE_EXHAUSTED", "FAILED_PRECONDITION", "ABORTED", "OUT_OF_RANGE", "UNIMPLEMENTED"),
    *("INTERNAL", "UNAVAILABLE", "DATA_LOSS", "UNAUTHENTICATED"),
)
_ROW = re.compile(r"^\|(.*)\|$", re.MULTILINE)
_CODE = re.compile(r"`(\w+)`")


def metric_page() -> Page:
    """Each family of /metrics."""
    lines = [
        "# Metrics",
        "",
        "Generated from the table that writes `/metrics` of the admin port. Some families appear once something uses",
        "them: an experiment, a shadow, a budget, a source of endpoints. [Operations](../operate/operations.md) has",
        "alerts.",
        "",
        "| metric | kind | labels | meaning |",
        "|---|---|---|---|",
    ]
    for metric in all_metrics():
        labels = ", ".join(f"`{label}`" for label in metric.labels)
        lines.append(f"| `{metric.full_name}` | {metric.kind} | {labels} | {metric.help} |")
    return Page("gateway/observability/exposition.py", METRICS, "Metrics", lines)


def error_page(root: Path) -> Page:
    """Each value of `x-pointsman-reason`, with what the pages say of it."""
    causes = {name: cells[3] for name, cells in rows(root / CAUSES, columns=4).items()}
    cures = {name: cells[2] for name, cells in rows(root / CURES, columns=3).items()}
    lines = [
        "# Errors",
        "",
        "Generated from the table of error kinds. A reply by the gateway itself names its kind in the field",
        "`x-pointsman-reason`, over gRPC in the trailers; [Troubleshooting](../operate/troubleshooting.md) begins from",
        "the message.",
        "",
        "| `x-pointsman-reason` | HTTP | gRPC | cause | what to do |",
        "|---|---|---|---|---|",
    ]
    for kind in ErrorKind:
        code, name = kind.status, kind.value
        cells = (f"`{name}`", str(code.http), CODES[code.grpc], causes.get(name, ""), cures.get(name, ""))
        lines.append(f"| {' | '.join(_without_links(cell) for cell in cells)} |")
    return Page("gateway/protocol/errors.py", ERRORS, "Errors", lines)


def rows(page: Path, columns: int) -> Mapping[str, list[str]]:
    """The rows of a page's tables whose first cell names reasons, by reason; the first row of a reason counts."""
    known = {kind.value for kind in ErrorKind}
    found: dict[str, list[str]] = {}
    for row in _ROW.findall(page.read_text()):
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", row)]
        if len(cells) == columns:
            for name in _reasons(cells[0], known):
                found.setdefault(name, cells)
    return found


def _reasons(cell: str, known: set[str]) -> Iterator[str]:
    return (name for name in _CODE.findall(cell) if name in known)


def _without_links(cell: str) -> str:
    return re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", cell)
