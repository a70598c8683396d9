"""`GET /v1/models`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.dataplane.stage import Engine, ReceivedRequest, get, run, stage

RULES = """version: 1
engines:
  odd: {{endpoints: ["{odd}"], health: {{interval: 0}}}}
  good: {{endpoints: ["{good}"], health: {{interval: 0}}}}
routes:
  - {{name: odds, match: {{model: "odd*"}}, engine: odd}}
  - {{name: rest, engine: good}}
"""


@pytest.mark.parametrize(
    "index", ['{"error": "x"}', "[1, null]", '[{"name": 5}, {"state": "READY"}]', "null", '"text"', "no JSON", ""]
)
def test_an_engine_answers_nonsense_with_status_200(tmp_path: Path, index: str) -> None:
    """A malformed repository index of one engine hides that engine's models alone."""

    def answering(text: str) -> Any:
        async def answer(engine: Engine, received: ReceivedRequest, reader: Any, writer: Any) -> None:
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(text), text.encode()))

        return answer

    async def scene() -> None:
        odd, good = Engine(answering(index)), Engine(answering('[{"name": "m", "state": "READY"}, {"name": "odd1"}]'))
        await odd.start()
        await good.start()
        async with stage(RULES.format(odd=odd.url, good=good.url), tmp_path) as it:
            reply = await it.ask(get("/v1/models"))
        assert reply.status == 200
        assert [card["id"] for card in json.loads(reply.body)["data"]] == ["m"]
        odd.stop()
        good.stop()

    run(scene())
