"""The audit that gateways share by Redis, where others may write."""

import asyncio

from gateway.admin.audit_log import RedisLog
from tests.support.redis_server import RedisServer
from tests.support.shared_redis import redis_server, shared_server, stored  # noqa: F401


def test_what_is_no_entry_is_left_out(redis_server: RedisServer) -> None:  # noqa: F811
    """Entries that no gateway has written do not hide the others."""
    for entry in ({"entry": '{"number": 1}'}, {"entry": "no json"}, {"entry": "[]"}, {"other": "{}"}):
        redis_server.client.xadd("pointsman:1:audit", entry)

    async def last() -> list[bytes]:
        async with stored(redis_server) as store:
            return await RedisLog(store).last(10)

    assert asyncio.run(last()) == [b'{"number": 1}']
