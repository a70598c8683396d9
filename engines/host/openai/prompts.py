"""Completions of several prompts in one request, as evaluations ask for them: one request each.

Source: OpenAI API reference, "Create completion": the choices of the first prompt come first.
"""

from __future__ import annotations

import orjson

from gateway.protocol.llm.request_fields import bad_request, optional, read_fields


def split_prompts(body: bytes) -> list[bytes]:
    """A body for each prompt; the body itself where there is one.

    Raises: GatewayError(BAD_REQUEST) where the body is no JSON object, or several are to be streamed.
    """
    given = read_fields(body)
    prompts = given.get("prompt")
    if not isinstance(prompts, list) or len(prompts) < 2 or not isinstance(prompts[0], str | list):
        return [body]
    if optional(given, "stream", bool):
        raise bad_request(f"'prompt' holds {len(prompts)} prompts, of which a stream can tell one; ask for each alone")
    return [orjson.dumps(given | {"prompt": prompt}) for prompt in prompts]
