"""Media inside a body: `data:` URLs in base64, as OpenAI's dialects carry them (RFC 2397)."""

from __future__ import annotations


def data_url(media_type: str, data: str) -> str:
    """The URL that holds these bytes, which are in base64 already."""
    return f"data:{media_type};base64,{data}"


def split_data_url(url: str) -> tuple[str, str] | None:
    """The media type, and the bytes in base64; None where the URL holds none in base64."""
    head, comma, data = url.partition(",")
    if not comma or not head.startswith("data:") or not head.endswith(";base64"):
        return None
    return head[5:-7].partition(";")[0], data
