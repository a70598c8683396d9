"""A report for an issue: all findings in Markdown, without secrets and personal data."""

from __future__ import annotations

import getpass
import json
import platform
import re
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from engines.doctor.finding import Finding

_CREDENTIALS = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*://)[^/@\s\"']+@")
_SECRET = re.compile(
    r"(?i)\b(?P<name>[\w-]*(?:api[_-]?key|token|secret|password|authorization))(?P<sep>[\"']?\s*[=:]\s*)"
    r"(?:Bearer\s+)?[\"']?[^\s\"',;&]+"
)
_BEARER = re.compile(r"(?i)\bBearer\s+[\w.~+/=-]+")


def markdown(findings: Mapping[str, Finding]) -> str:
    """The report. Credentials in URLs, values that look like secrets, the home folder and the user's name are left
    out; the environment's values are not in it at all."""
    rows = [f"| {name} | {finding.status.value} | {_cell(finding.found)} | {_cell(finding.cure)} |"
            for name, finding in findings.items()]  # fmt: skip
    details = [f"### {name}\n\n```json\n{json.dumps(redacted_values(finding.figures), indent=1, default=str)}\n```\n"
               for name, finding in findings.items() if finding.figures]  # fmt: skip
    head = f"# pointsman doctor\n\n{time.strftime('%Y-%m-%d %H:%M UTC', time.gmtime())}, {platform.platform()}\n"
    table = "| check | | found | what to do |\n|---|---|---|---|\n" + "\n".join(rows)
    return redacted(f"{head}\n{table}\n\n## Figures\n\n" + "\n".join(details))


def redacted(text: str) -> str:
    """A text without credentials, without this user's home folder and name."""
    text = _CREDENTIALS.sub(r"\g<scheme>***@", text)
    text = _BEARER.sub("Bearer ***", text)
    text = _SECRET.sub(r"\g<name>\g<sep>***", text)
    for private, shown in ((_home(), "~"), (_user(), "USER")):
        if len(private) > 2:
            text = re.sub(rf"(?<![\w-]){re.escape(private)}(?![\w-])", shown, text)
    return text


def redacted_values(values: Any) -> Any:
    if isinstance(values, str):
        return redacted(values)
    if isinstance(values, Mapping):
        return {name: redacted_values(value) for name, value in values.items()}
    return [redacted_values(value) for value in values] if isinstance(values, list | tuple) else values


def _home() -> str:
    try:
        return str(Path.home()).rstrip("/")
    except RuntimeError:
        return ""


def _user() -> str:
    try:
        name = getpass.getuser()
    except (OSError, KeyError):
        return ""
    return "" if name == "root" else name


def _cell(text: str) -> str:
    return " ".join(text.replace("|", "\\|").split())
