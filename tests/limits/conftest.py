"""A real Redis."""

from tests.support.shared_redis import redis_server, shared_server

__all__ = ["redis_server", "shared_server"]
