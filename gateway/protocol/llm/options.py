"""The fields of a generation besides its text, by one set of names, and what becomes of those an engine has not."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from gateway.protocol.errors import ErrorKind, GatewayError

# Name -> what it says. OpenAI's names where it has one, else vLLM's, which most engines took over.
OPTIONS: dict[str, str] = {
    "max_tokens": "int: tokens to generate at most, thinking included",
    "min_tokens": "int: tokens to generate at least",
    "temperature": "number",
    "top_p": "number",
    "top_k": "int",
    "min_p": "number",
    "seed": "int",
    "stop": "list of str: texts that end a choice",
    "stop_token_ids": "list of int",
    "bad_words": "list of str: texts that may not come",
    "ignore_eos": "bool",
    "n": "int: choices; 1 is the default and is not kept",
    "best_of": "int",
    "presence_penalty": "number",
    "frequency_penalty": "number",
    "repetition_penalty": "number",
    "length_penalty": "number",
    "beam_width": "int: beams of a beam search",
    "logit_bias": "map of token id (text) to number",
    "logprobs": "int: how many alternatives to tell beside each token's own logprob; 0: its own alone",
    "prompt_logprobs": "int",
    "echo": "bool: the prompt stands before the text; false is the default and is not kept",
    "suffix": "str: what follows the text to insert",
    "skip_special_tokens": "bool",
    "response_format": "OpenAI's chat form: {type: json_object}, or {type: json_schema, json_schema: {name, schema}}",
    "tool_choice": "OpenAI's chat form: auto, none, required or {type: function, function: {name}}",
    "parallel_tool_calls": "bool",
    "reasoning_effort": "str: none, minimal, low, medium, high",
    "thinking_tokens": "int: budget for thinking; 0 switches it off",
    "user": "str: whose request it is",
    "metadata": "map of str: for the provider's own records",
    "priority": "int: the scheduler's",
}


def taken(
    options: Mapping[str, Any], known: Collection[str], *, engine: str, drop: bool = False
) -> tuple[dict[str, Any], list[str]]:
    """The options that an engine has a place for, and the names of those that were dropped.

    `engine` says in words what the request is written for, as "an OpenAI completions engine".
    Raises: GatewayError(UNSUPPORTED) that names what has no place, where it is not to be dropped.
    """
    lost = [name for name in options if name not in known]
    if lost and not drop:
        names = ", ".join(f"'{name}'" for name in lost)
        what = f"{names} cannot be told to {engine}; leave it out, or set 'unsupported: drop' on the engine"
        raise GatewayError(ErrorKind.UNSUPPORTED, what)
    return {name: value for name, value in options.items() if name in known}, lost
