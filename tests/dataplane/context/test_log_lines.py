"""The access log's fast lines are those of its entries."""

import asyncio
import io
from dataclasses import dataclass
from time import monotonic
from typing import Any

import orjson
import pytest

from gateway.dataplane.context.ended_request import DecisionFacts, EndedRequest, Generated, log_entry
from gateway.dataplane.context.log_lines import LogLines
from gateway.observability.access_log import AccessLog
from gateway.observability.request_trace import RequestTrace
from gateway.protocol.llm.canonical import TokenUsage
from gateway.protocol.operations import Operation
from gateway.protocol.principal import Principal
from gateway.routing.decision import Facts, Target


@dataclass
class History:
    waited: float = 0.0
    queued: float = 0.0
    first_byte_at: float = 0.0
    status: int = 200
    attempt: Any = "latest"
    past: tuple[tuple[Any, float, str], ...] = ()
    provider: str = "v2"


FACTS = DecisionFacts(Facts("m", "2", "rest", Operation.INFER, {}), None)
CHAT = DecisionFacts(Facts('é"', None, "openai", Operation.CHAT, {}), "session")
PLAIN = EndedRequest("127.0.0.1", ("POST", "/v2/models/m/infer?a=***"), 200, "", 0.25, b"r\xe9", facts=FACTS)
TARGET = Target("all", "it", model="there", experiment="x", arm="new")


@pytest.mark.parametrize(
    "ended",
    [
        EndedRequest("-", ("-", "-"), 400, "bad_request", 0.0),
        PLAIN,
        PLAIN._replace(target=TARGET, endpoint="http://e", attempts=History(waited=0.5, past=((None, 1.0, "x"),))),
        PLAIN._replace(status=503, reason="upstream_reset", attempts=History(first_byte_at=monotonic())),
        PLAIN._replace(principal=Principal("acme", "k1"), trace=RequestTrace(b"a" * 32, b"", b"", 0.0)),
        PLAIN._replace(facts=CHAT, generated=Generated(TokenUsage(7, 5, 3), monotonic(), "stop"), response_bytes=9),
        PLAIN._replace(request_line=("POST", "/inference.S/M"), is_rpc=True, code=14, request_bytes=3),
    ],
)
def test_a_fast_line_is_that_of_the_entry(ended: EndedRequest) -> None:
    """A line has the fields of the entry's line, when it is new and when an earlier one began alike."""

    async def rendered() -> dict[str, Any]:
        stream = io.StringIO()
        log = AccessLog("otel", stream)
        log.write(log_entry(ended))
        log.flush()
        return dict(orjson.loads(stream.getvalue()))

    def untimed(fields: dict[str, Any]) -> dict[str, Any]:
        assert fields.pop("@timestamp").endswith("+00:00")
        for name in ("pointsman.first_byte.duration", "gen_ai.response.time_to_first_chunk"):
            if name in fields:  # both look at the clock
                fields[name] = type(fields[name])
        return fields

    expected, lines = untimed(asyncio.run(rendered())), LogLines()
    assert untimed(orjson.loads(lines.line(ended))) == expected
    assert untimed(orjson.loads(lines.line(ended))) == expected
