"""What stops an analysis: each message says what to do next."""

from __future__ import annotations


class AnalyzeError(Exception):
    """The analysis cannot go on; the message says why and what to do."""
