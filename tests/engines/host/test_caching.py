"""The response cache that --cache-config asks for."""

import asyncio

import pytest

from engines.host.caching import response_cache
from engines.host.clock import LoopClock


def made(options: dict[str, dict[str, str]]) -> str:
    """How the cache tells what it is."""

    async def make() -> str:
        return repr(response_cache(options, LoopClock(asyncio.get_running_loop())))

    return asyncio.run(make())


def test_caches() -> None:
    """None, one in this process, or Redis."""
    assert made({}) == "None"
    assert made({"local": {"size": "1024"}}) == "<ResponseCache: <LocalStore: 0 responses, 0 of 1024 bytes>>"
    assert "RedisStore" in made({"redis": {"host": "127.0.0.1", "port": "1"}})
    assert "RedisStore" in made({"redis": {"url": "redis://127.0.0.1:1/0"}})


@pytest.mark.parametrize(
    "options, text",
    [
        ({"disk": {"size": "1"}}, "local or redis, not disk"),
        ({"local": {"size": "1"}, "redis": {}}, "knows one cache"),
        ({"local": {}}, "whole number of bytes"),
        ({"local": {"size": "1MB"}}, "whole number of bytes"),
    ],
)
def test_wrong_options_are_told(options: dict[str, dict[str, str]], text: str) -> None:
    """With what would be right."""
    with pytest.raises(ValueError, match=text):
        made(options)
