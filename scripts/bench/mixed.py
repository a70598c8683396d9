"""Traffic as many different clients send it: no head and no body occurs twice.

500 users with bearer tokens of 300 bytes, 50 tenants, 2,000 sessions, five clients, 40 models by name; each request has
an id, a trace, numbers and a length of its own. The rules have 42 routes: one by a header, one for each model (the
first model's is split 90/10 by session), and one for all other requests.
"""

import itertools
import random
import string
from collections.abc import Callable
from typing import Any

from bench import messages

NUM_MODELS = 40
NUM_USERS = 500
NUM_TENANTS = 50
NUM_SESSIONS = 2_000
TOKEN_BYTES = 300
# Requests that are written before the load begins, and then sent in turn: far more than any cache of heads keeps.
NUM_REQUESTS = 20_000
MODEL_PREFIX = "mixed-"
# No request has it: the rule by this header is checked for every request, and matches none.
TIER_HEADER, TIER = "x-tier", "gold"

# What the clients' libraries send beside what is the user's own.
CLIENTS = (
    ("User-Agent: python/gevent-http-client-2.6.1", "Content-Type: application/json", "Accept: */*"),
    (
        "User-Agent: python-httpx/0.28.1",
        "Accept: */*",
        "Accept-Encoding: gzip, deflate",
        "Connection: keep-alive",
        "Content-Type: application/json",
    ),
    ("User-Agent: Go-http-client/1.1", "Content-Type: application/json", "Accept-Encoding: gzip"),
    (
        "User-Agent: okhttp/4.12.0",
        "Connection: Keep-Alive",
        "Accept-Encoding: gzip",
        "Content-Type: application/json; charset=utf-8",
    ),
    (
        "User-Agent: node",
        "Accept: application/json",
        "Accept-Language: *",
        "Sec-Fetch-Mode: cors",
        "Content-Type: application/json",
        "Accept-Encoding: br, gzip, deflate",
    ),
)


def model_path(number: int) -> str:
    return f"/v2/models/{MODEL_PREFIX}{number}/infer"


def tokens() -> list[str]:
    """The users' bearer tokens, the same in every round."""
    letters, fixed = string.ascii_letters + string.digits, random.Random(1)
    return ["".join(fixed.choices(letters, k=TOKEN_BYTES)) for _ in range(NUM_USERS)]


def requests(number: int = NUM_REQUESTS, seed: int | None = None) -> list[bytes]:
    """That many requests, each head and body in one piece."""
    chance = random.Random(seed)
    bearers = tokens()

    def vector(name: str) -> dict[str, Any]:
        data = [chance.randrange(100_000) for _ in range(16)]
        return {"name": name, "shape": [1, 16], "datatype": "INT32", "data": data}

    def request() -> bytes:
        client = chance.choice(CLIENTS)
        body = messages.compact_json({"inputs": [vector("INPUT0"), vector("INPUT1")], "outputs": [{"name": "OUTPUT0"}]})
        trace, span, request_id = chance.getrandbits(128), chance.getrandbits(64), chance.getrandbits(128)
        lines = (
            f"POST {model_path(chance.randrange(NUM_MODELS))} HTTP/1.1",
            "Host: inference.example.com",
            *client,
            f"Authorization: Bearer {chance.choice(bearers)}",
            f"X-Tenant: tenant-{chance.randrange(NUM_TENANTS)}",
            f"X-Session-Id: session-{chance.randrange(NUM_SESSIONS)}",
            f"X-Request-Id: {request_id:032x}",
            f"traceparent: 00-{trace:032x}-{span:016x}-01",
            f"Content-Length: {len(body)}",
        )
        return "".join(f"{line}\r\n" for line in lines).encode() + b"\r\n" + body

    return [request() for _ in range(number)]


def in_turn(made: list[bytes]) -> Callable[[], bytes]:
    """A function that returns one request after another, and then begins again."""
    return itertools.cycle(made).__next__
