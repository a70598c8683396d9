#!/usr/bin/env python3
"""Talks to a gateway by plain HTTP: an inference, a chat, a session that keeps its arm, an error, feedback.

    python scripts/examples/inference_client.py http://localhost:8000 --model MODEL [--chat MODEL] [--key KEY]

It needs httpx alone, and follows `pointsman openapi`; see gateway/guides/openapi.md for generated clients.
"""

from __future__ import annotations

import argparse
import sys

import httpx


def infer(client: httpx.Client, model: str, session: str) -> httpx.Response:
    """One inference of a session; the client's jar keeps the cookie by which the session keeps its arm."""
    tensor = {"name": "x", "shape": [1, 4], "datatype": "FP32", "data": [1.0, 2.0, 3.0, 4.0]}
    reply = client.post(f"/v2/models/{model}/infer", json={"inputs": [tensor]}, headers={"x-session-id": session})
    return reply.raise_for_status()


def chat(client: httpx.Client, model: str, text: str) -> str:
    """The answer of a language model."""
    body = {"model": model, "messages": [{"role": "user", "content": text}]}
    reply = client.post("/v1/chat/completions", json=body).raise_for_status()
    return str(reply.json()["choices"][0]["message"]["content"])


def refusal(reply: httpx.Response) -> str:
    """What a failed reply says: the gateway's reason, or the engine's status, and the message in the API's form."""
    error = reply.json()["error"]
    message = error["message"] if isinstance(error, dict) else error
    return f"{reply.headers.get('x-pointsman-reason', reply.status_code)}: {message}"


def rate(client: httpx.Client, reply: httpx.Response, value: float) -> bool:
    """Say how good an answer was; whether an experiment counts it."""
    body = {"request_id": reply.headers["x-request-id"], "value": value}
    return client.post("/feedback", json=body).status_code == 200


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url")
    parser.add_argument("--model", required=True, help="a model with an FP32 input x of shape [1, 4]")
    parser.add_argument("--chat", help="a language model")
    parser.add_argument("--key", help="an API key, where the rules have auth:")
    options = parser.parse_args()
    headers = {"authorization": f"Bearer {options.key}"} if options.key else {}
    with httpx.Client(base_url=options.url, headers=headers, timeout=60.0) as client:
        replies = [infer(client, options.model, "alice") for _ in range(2)]
        for reply in replies:
            print("infer:", reply.headers.get("x-pointsman-arm", "-"), reply.json()["outputs"])
        print("rated:", rate(client, replies[-1], 1.0))
        if options.chat:
            print("chat:", chat(client, options.chat, "Hello"))
        print("refused:", refusal(client.get("/v1/models/no-such-model")))
    return 0


if __name__ == "__main__":
    sys.exit(main())
