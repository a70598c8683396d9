"""The configurations of the proxies of language models: each minimal, without an access log, retries or a database."""

import json
import os

from bench import configs
from bench.openai_messages import MODEL, ON_TRITON, OTHER_NAME

# Proxies may call the engine only: no price list, no tokenizer download, no version check. Any other download is sent
# to a port without a listener.
OFFLINE = {"HF_HUB_OFFLINE": "1", "HTTPS_PROXY": "http://127.0.0.1:9", "https_proxy": "http://127.0.0.1:9"}

# Tokio starts a thread for each core by default.
ONE_THREAD = {"TOKIO_WORKER_THREADS": "1"}

LITELLM = {
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    "LITELLM_TELEMETRY": "False",
    "LITELLM_LOG": "ERROR",
    # LiteLLM listens on 127.0.0.1 alone, and its engine is canned; the other proxies need no key either.
    "LITELLM_DANGEROUSLY_PERMIT_WEAK_OR_UNSET_MASTER_KEY": "true",
    "DO_NOT_TRACK": "1",
}


def envoy_config(port: int, engine: int) -> str:
    """Router filter, health checks like Pointsman's, Envoy's own statistics."""
    listener = configs.envoy_listener("bench", port, [configs.envoy_route("/", "llm")])
    return configs.envoy_document([listener], [configs.envoy_cluster("llm", engine)])


def router_flags(port: int, metrics_port: int, engine: int, policy: str) -> tuple[str, ...]:
    """The common options of vllm-router and sglang-router: the cheapest of their policies, health checks like
    Pointsman's."""
    flags = {
        "--host": "127.0.0.1",
        "--port": str(port),
        "--worker-urls": f"http://127.0.0.1:{engine}",
        "--policy": policy,
        "--worker-startup-check-interval": "1",
        "--health-check-interval-secs": "2",
        "--log-level": "error",
        "--prometheus-host": "127.0.0.1",
        "--prometheus-port": str(metrics_port),
    }
    return (*(word for pair in flags.items() for word in pair), "--disable-retries")


def litellm_config(engine: int) -> str:
    """Both names of the model, at an engine of its vLLM kind. JSON is YAML."""
    there = {"model": f"hosted_vllm/{MODEL}", "api_base": f"http://127.0.0.1:{engine}/v1", "api_key": "sk-local"}
    document = {
        "model_list": [{"model_name": name, "litellm_params": there} for name in (MODEL, OTHER_NAME)],
        "litellm_settings": {"telemetry": False, "num_retries": 0},
        "router_settings": {"num_retries": 0},
    }
    return json.dumps(document, indent=1)


def pointsman_rules(engine: int, template: str | os.PathLike[str]) -> str:
    """Realistic rules: a glob, a header, two exact names, one of them renamed, and a fallback."""
    health = "health: {interval: 2s, timeout: 1s, unhealthy_after: 3, healthy_after: 1}"
    there = f'endpoints: ["http://127.0.0.1:{engine}"], timeout: 600s, {health}'
    lines = (
        "version: 1",
        "engines:",
        f"  llm: {{protocol: openai, {there}}}",
        f"  code: {{protocol: openai, {there}}}",
        f"  triton: {{protocol: kserve, chat_template: {os.fspath(template)}, {there}}}",
        "routes:",
        '  - {name: code, match: {model: "codellama-*"}, engine: code}',
        '  - {name: premium, match: {model: "llama-*", header: {x-tier: premium}}, engine: code}',
        f"  - {{name: renamed, match: {{model: {OTHER_NAME}}}, engine: llm, model: {MODEL}}}",
        f"  - {{name: triton, match: {{model: {ON_TRITON}}}, engine: triton}}",
        "  - {name: everything-else, engine: llm}",
    )
    return "".join(f"{line}\n" for line in lines)
