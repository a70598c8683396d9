"""The analyzed server: its control calls over REST, with errors that name the next step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import httpx
import orjson

from engines.analyze.models import AnalyzeError, ServerTimes

# A load waits for the model's files, and for its instances to warm up.
_LOAD_SECONDS = 600.0
_CALL_SECONDS = 30.0
_TIMES = ("queue", "compute_input", "compute_infer", "compute_output")


@dataclass(frozen=True, slots=True)
class Counters:
    """A model's statistics so far: counts, and nanoseconds in sum."""

    inferences: int
    executions: int
    requests: int
    nanoseconds: Mapping[str, int]

    def times_since(self, before: Counters) -> ServerTimes | None:
        """Averages between two readings; None where nothing was answered meanwhile."""
        requests = self.requests - before.requests
        executions = self.executions - before.executions
        if requests <= 0 or executions <= 0:
            return None
        means = {part: (total - before.nanoseconds[part]) / requests / 1e6 for part, total in self.nanoseconds.items()}
        return ServerTimes(**means, mean_batch=(self.inferences - before.inferences) / executions)


class Server:
    """A Triton-compatible server in explicit model control, seen by its REST port."""

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")
        # A persistent connection would delay the stop of a server that waits for its clients.
        limits = httpx.Limits(max_keepalive_connections=0)
        self._client = httpx.AsyncClient(base_url=self.url, trust_env=False, limits=limits, timeout=_CALL_SECONDS)

    async def close(self) -> None:
        await self._client.aclose()

    async def name(self) -> str:
        """The server's name and version. Raises: AnalyzeError where no V2 server answers."""
        reply_json = await self._call("GET", "/v2")
        if "name" not in reply_json:
            raise AnalyzeError(f"{self.url} is no V2 server: name the REST port of one by --url")
        return f"{reply_json['name']} {reply_json.get('version', '')}".strip()

    async def is_loaded(self, model: str) -> bool:
        """Whether a version of the model serves. Raises: AnalyzeError for a model that the repository lacks."""
        index = await self._call("POST", "/v2/repository/index", {})
        states = [one.get("state") for one in index if one["name"] == model]
        if not states:
            models = ", ".join(sorted({one["name"] for one in index})) or "none"
            raise AnalyzeError(f"the server has no model {model!r}; it has: {models}")
        return "READY" in states

    async def config(self, model: str) -> dict[str, Any]:
        config: dict[str, Any] = await self._call("GET", f"/v2/models/{quote(model, safe='')}/config")
        return config

    async def load(self, model: str, config: dict[str, Any] | None = None) -> None:
        """Load the model, with another configuration than its repository's where one is given. Raises: AnalyzeError."""
        body = {} if config is None else {"parameters": {"config": orjson.dumps(config).decode()}}
        await self._call("POST", f"/v2/repository/models/{quote(model, safe='')}/load", body, _LOAD_SECONDS)

    async def unload(self, model: str) -> None:
        await self._call("POST", f"/v2/repository/models/{quote(model, safe='')}/unload", {}, _LOAD_SECONDS)

    async def counters(self, model: str) -> Counters:
        """The model's statistics, of all its versions together."""
        reply_json = await self._call("GET", f"/v2/models/{quote(model, safe='')}/stats")
        versions = reply_json["model_stats"]

        def total(part: str, field: str = "ns") -> int:
            return sum(int(one.get("inference_stats", {}).get(part, {}).get(field, 0)) for one in versions)

        return Counters(
            inferences=sum(int(one.get("inference_count", 0)) for one in versions),
            executions=sum(int(one.get("execution_count", 0)) for one in versions),
            requests=total("success", "count"),
            nanoseconds={part: total(part) for part in _TIMES},
        )

    async def _call(self, method: str, path: str, body: object = None, timeout: float = _CALL_SECONDS) -> Any:
        try:
            reply = await self._client.request(method, path, json=body, timeout=timeout)
        except httpx.TimeoutException as error:
            raise AnalyzeError(f"{self.url}{path} is not answered in {timeout:g} s: see the server's log") from error
        except httpx.HTTPError as error:
            start = "start one with `--model-repository DIR`, or name a running one's REST port by `--url`"
            raise AnalyzeError(f"no server answers at {self.url} ({error}): {start}") from error
        if reply.is_success:
            try:
                return orjson.loads(reply.content or b"{}")
            except ValueError as error:
                raise AnalyzeError(f"{self.url}{path} is answered with something else than JSON") from error
        raise AnalyzeError(_refusal(path, reply))


def _refusal(path: str, reply: httpx.Response) -> str:
    try:
        text = str(reply.json()["error"])
    except (ValueError, KeyError, TypeError):
        text = reply.text
    refusal = f"{path} is refused: {text}"
    if "explicit model load / unload is not allowed" in text:
        return f"{refusal}. The server must load models on demand: start it with --model-control-mode=explicit"
    return refusal
