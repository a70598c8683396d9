"""Redaction of personal data: what looks like an e-mail address, a telephone or card number is replaced in prompts, so
that no engine, shadow or conversation has it. Patterns find what has a form; for names and addresses install Presidio
(`pip install presidio-analyzer`, and a spaCy model) and say `presidio: "yes"`.
"""

import re
from typing import Any

from gateway.hooks import Change, HookRequest

PATTERNS = {
    "EMAIL": re.compile(r"[\w.+-]{1,64}@[\w-]{1,63}(?:\.[\w-]{1,63}){1,8}"),
    "CARD": re.compile(r"\b(?:\d[ -]?){12,18}\d\b"),
    "PHONE": re.compile(r"(?<!\w)\+?\d{1,3}[ /-]?(?:\(\d{1,4}\)[ -]?)?\d{2,4}(?:[ -]?\d{2,4}){2,4}\b"),
}
# Fields of the APIs that have a client's text; of messages, their content.
FIELDS = ("messages", "prompt", "input", "text_input", "system", "instructions")


class Redact:
    """Replaces what `patterns` name (default: all). Plain code in a thread: texts may be long."""

    def __init__(self, patterns: str = "EMAIL,CARD,PHONE", presidio: str = "no", language: str = "en") -> None:
        self._patterns = {name.strip(): PATTERNS[name.strip()] for name in patterns.split(",")}
        self._language = language
        self._analyzer: Any = None
        if presidio == "yes":
            from presidio_analyzer import AnalyzerEngine

            self._analyzer = AnalyzerEngine()

    def on_request(self, request: HookRequest) -> Change | None:
        if not isinstance(request.json, dict):
            return None
        redacted = {name: self._redacted(request.json[name]) for name in FIELDS if name in request.json}
        changed = {name: value for name, value in redacted.items() if value != request.json[name]}
        return Change(fields=changed) if changed else None

    def _redacted(self, value: Any) -> Any:
        """The same value with its texts redacted; roles and types are no texts of a client's."""
        if isinstance(value, str):
            return self._text(value)
        if isinstance(value, list):
            return [self._redacted(each) for each in value]
        if isinstance(value, dict):
            kept = ("role", "type", "id", "name", "url")
            return {key: each if key in kept else self._redacted(each) for key, each in value.items()}
        return value

    def _text(self, text: str) -> str:
        for name, pattern in self._patterns.items():
            text = pattern.sub(f"[{name}]", text)
        if self._analyzer is not None:
            found = self._analyzer.analyze(text=text, language=self._language)
            for each in sorted(found, key=lambda each: -each.start):
                text = f"{text[: each.start]}[{each.entity_type}]{text[each.end :]}"
        return text
