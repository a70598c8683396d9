"""The canned engine's routes and answers, and the requests it received."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import orjson

from tests.support.canned_llm import v2
from tests.support.canned_llm.faults import Faults
from tests.support.canned_llm.messages import CountTokens, Messages
from tests.support.canned_llm.openai import Chat, Completions, Embeddings, Tokenize, error
from tests.support.canned_llm.plan import PromptCache, RefusedError
from tests.support.canned_llm.reading import Job
from tests.support.canned_llm.responses import InputTokens, Responses

# Dialect, by its name in rule files -> its paths.
PATHS = {
    "chat": ["/v1/chat/completions", "/tokenize"],
    "completions": ["/v1/completions"],
    "embeddings": ["/v1/embeddings"],
    "responses": ["/v1/responses", "/v1/responses/input_tokens"],
    "messages": ["/v1/messages", "/v1/messages/count_tokens"],
}

# Of vLLM, Triton and TorchServe; of NIM, of BentoML (OpenLLM) and of Ray Serve's proxy.
_HEALTH_PATHS = {"/health", "/v2/health/live", "/v2/health/ready", "/ping", "/v1/health/ready", "/readyz", "/-/healthz"}
_METRICS_PATHS = {"/metrics", "/v1/metrics", "/prometheus/metrics"}  # the others are NIM's and trtllm-serve's


@dataclass(slots=True)
class Request:
    """One HTTP request; header names in lower case."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes


@dataclass(slots=True)
class Sight:
    """The record of one generation."""

    request: Request
    state: str = "running"  # running | done | refused | cancelled: the client disconnected | broken: a fault
    tokens: int = 0

    def described(self) -> dict[str, Any]:
        try:
            body = orjson.loads(self.request.body)
        except orjson.JSONDecodeError:
            body = self.request.body.decode("utf-8", "replace")
        request = self.request
        reply = {"method": request.method, "path": request.path, "headers": request.headers, "body": body}
        return {**reply, "state": self.state, "tokens": self.tokens}


@dataclass(slots=True)
class Generation:
    """A request for a generation: its dialect, its plan, and its faults."""

    dialect: Any
    job: Job
    sight: Sight
    faults: Faults


@dataclass(slots=True)
class Answer:
    """A complete reply."""

    body: bytes
    status: int = 200
    content_type: str = "application/json"


@dataclass
class Engine:
    """The engine without sockets. `interval_seconds`: the pause between tokens, unless a fault sets another."""

    models: list[str]
    dialects: list[str] = field(default_factory=lambda: list(PATHS))
    prefill: str = "always"
    api_key: str = ""
    is_v2: bool = False
    interval_seconds: float = 0.0
    ready: bool = True
    swaps: Mapping[str, str] = field(default_factory=dict)  # words -> their replacements

    def __post_init__(self) -> None:
        self.sights: list[Sight] = []
        self._faults = ""
        self._times: int | None = None
        self._cache = PromptCache()
        self._number = 0
        self._routes = self._v2_routes() if self.is_v2 else self._openai_routes()
        self._controls: dict[str, Callable[[Request], Answer]] = {
            "/test/seen": lambda _: Answer(orjson.dumps([sight.described() for sight in self.sights])),
            "/test/fault": self._set_faults,
            "/test/forget": self._forget,
            "/test/ready": self._set_ready,
        }

    def answer(self, request: Request) -> Answer | Generation:
        path = request.path.partition("?")[0]
        if control := self._controls.get(path):
            return control(request)
        if self.api_key and path.startswith("/v1/") and not self._is_authorised(request.headers):
            return Answer(error("Unauthorized", 401), 401)
        if dialect := self._routes.get(path):
            if request.method != "POST":
                return Answer(b'{"detail":"Method Not Allowed"}', 405)
            return self._generate(dialect, request)
        return self._informed(path)

    def _generate(self, dialect: Any, request: Request) -> Answer | Generation:
        sight = Sight(request)
        self.sights.append(sight)
        self._number += 1
        try:
            faults = Faults.read(request.headers.get("x-test-fault") or self._next_faults())
            if faults.status is not None:
                raise RefusedError(f"the fault says {faults.status}", faults.status)
            job = self._swapped(dialect.read(self._read_body(request), self._number))
        except RefusedError as refused:
            sight.state = "refused"
            return Answer(dialect.error(refused.message, refused.status), refused.status)
        return Generation(dialect, job, sight, faults)

    def _swapped(self, job: Job) -> Job:
        if not self.swaps:
            return job
        words = {before + word: before + other for word, other in self.swaps.items() for before in ("", " ")}
        plans = [replace(plan, tokens=[words.get(token, token) for token in plan.tokens]) for plan in job.plans]
        return replace(job, plans=plans)

    def _read_body(self, request: Request) -> dict[str, Any]:
        try:
            body = orjson.loads(request.body)
        except orjson.JSONDecodeError as failure:
            raise RefusedError(f"not JSON: {failure}") from None
        if not isinstance(body, dict):
            raise RefusedError("the body must be a JSON object")
        if not self.is_v2 and body.get("model") not in self.models:
            raise RefusedError(f"The model `{body.get('model')}` does not exist.", 404)
        return body

    def _informed(self, path: str) -> Answer:
        """Answer a GET for information about the engine."""
        if path in _HEALTH_PATHS:
            return Answer(b"", 200 if self.ready else 503)
        if path in _METRICS_PATHS:
            return Answer(self._metrics(), content_type="text/plain; version=0.0.4; charset=utf-8")
        if self.is_v2:
            return self._v2_informed(path)
        listed = [
            {"id": model, "object": "model", "created": 1_700_000_000, "owned_by": "tests", "max_model_len": 4096}
            for model in self.models
        ]
        if path == "/v1/models":
            return Answer(orjson.dumps({"object": "list", "data": listed}))
        for model in listed:
            if path == f"/v1/models/{model['id']}":
                return Answer(orjson.dumps(model))
        return Answer(b'{"detail":"Not Found"}', 404)

    def _v2_informed(self, path: str) -> Answer:
        if path == "/v2":
            reply = {"name": "triton", "version": "2.60.0", "extensions": ["generate"]}
            return Answer(orjson.dumps(reply))
        if path == "/v2/repository/index":
            index = [{"name": model, "version": "1", "state": "READY"} for model in v2.INPUTS]
            return Answer(orjson.dumps(index))
        for model in v2.INPUTS:
            for at in (f"/v2/models/{model}", f"/v2/models/{model}/versions/1"):
                if path == at:
                    return Answer(v2.metadata(model))
                if path == f"{at}/config":
                    return Answer(v2.config(model))
                if path == f"{at}/ready":
                    return Answer(b"", 200 if self.ready else 400)
        return Answer(b'{"error":"Request for unknown model is not found"}', 404)

    def _openai_routes(self) -> dict[str, Any]:
        dialects = {
            "/v1/chat/completions": Chat(self._cache, self.prefill),
            "/tokenize": Tokenize(self._cache, self.prefill),
            "/v1/completions": Completions(self._cache),
            "/v1/embeddings": Embeddings(self._cache),
            "/v1/responses": Responses(self._cache),
            "/v1/responses/input_tokens": InputTokens(self._cache),
            "/v1/messages": Messages(self._cache),
            "/v1/messages/count_tokens": CountTokens(self._cache),
        }
        return {path: dialects[path] for dialect in self.dialects for path in PATHS[dialect]}

    def _v2_routes(self) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for model in v2.INPUTS:
            for at in (f"/v2/models/{model}", f"/v2/models/{model}/versions/1"):
                found[f"{at}/generate"] = v2.Generate(self._cache, model)
                found[f"{at}/generate_stream"] = v2.Generate(self._cache, model, streams=True)
                found[f"{at}/infer"] = v2.Infer(self._cache, model)
        return found

    def _is_authorised(self, headers: Mapping[str, str]) -> bool:
        return self.api_key in (headers.get("authorization", "").removeprefix("Bearer "), headers.get("x-api-key"))

    def _next_faults(self) -> str:
        if self._times is not None:
            if self._times == 0:
                return ""
            self._times -= 1
        return self._faults

    def _set_faults(self, request: Request) -> Answer:
        reply = orjson.loads(request.body)
        try:
            Faults.read(reply["faults"])
        except ValueError as failure:
            return Answer(str(failure).encode(), 400, "text/plain")
        self._faults, self._times = reply["faults"], reply.get("times")
        return Answer(b"{}")

    def _forget(self, request: Request) -> Answer:
        self.sights.clear()
        self._faults, self._times = "", None
        self.ready = True
        return Answer(b"{}")

    def _set_ready(self, request: Request) -> Answer:
        self.ready = bool(orjson.loads(request.body)["ready"])
        return Answer(b"{}")

    def _metrics(self) -> bytes:
        """Metrics with vLLM's names."""
        label = f'{{model_name="{self.models[0]}"}}'
        running = sum(sight.state == "running" for sight in self.sights)
        done = sum(sight.state == "done" for sight in self.sights)
        lines = [
            "# TYPE vllm:num_requests_running gauge",
            f"vllm:num_requests_running{label} {running}.0",
            "# TYPE vllm:num_requests_waiting gauge",
            f"vllm:num_requests_waiting{label} 0.0",
            "# TYPE vllm:kv_cache_usage_perc gauge",
            f"vllm:kv_cache_usage_perc{label} {min(1.0, running / 16)}",
            "# TYPE vllm:request_success_total counter",
            f'vllm:request_success_total{{finished_reason="stop",model_name="{self.models[0]}"}} {done}.0',
            "# TYPE vllm:generation_tokens_total counter",
            f"vllm:generation_tokens_total{label} {sum(sight.tokens for sight in self.sights)}.0",
        ]
        return "\n".join([*lines, ""]).encode()
