"""vLLM's `/tokenize`: the tokens of a prompt, or of a chat in the model's template.

Source: vLLM `entrypoints/serve/tokenize/protocol.py` (TokenizeCompletionRequest, TokenizeChatRequest,
TokenizeResponse).
"""

from __future__ import annotations

import orjson

from engines.core.messages import InferResponse
from engines.host.openai.reply_events import token_ids
from gateway.protocol.errors import ErrorKind, GatewayError
from gateway.protocol.llm.canonical import Generation
from gateway.protocol.llm.chat_request import read_messages
from gateway.protocol.llm.json_fields import optional, read_fields, required
from gateway.protocol.llm.openai_options import read_tools

_OF_CHATS = {"add_generation_prompt": bool, "continue_final_message": bool, "chat_template_kwargs": dict}


def read_tokenize_request(body: bytes) -> Generation:
    """Raises: GatewayError that names the field."""
    fields = read_fields(body)
    model = required(fields, "model", str)
    if optional(fields, "return_token_strs", bool):
        what = "'return_token_strs' cannot be true: this engine lists the ids of tokens alone; leave it out"
        raise GatewayError(ErrorKind.UNSUPPORTED, what)
    if fields.get("prompt") is not None:
        is_added = optional(fields, "add_special_tokens", bool)
        options = {} if is_added is None else {"add_special_tokens": is_added}
        return Generation(model, required(fields, "prompt", str), options=options)
    read = {name: optional(fields, name, kind) for name, kind in _OF_CHATS.items()}
    options = {name: value for name, value in read.items() if value is not None}
    return Generation(model, None, read_messages(fields.get("messages")), read_tools(fields), options)


def tokenize_reply(response: InferResponse, max_context: int | None) -> bytes:
    """The body of the reply."""
    tokens = token_ids(response)
    return orjson.dumps({"count": len(tokens), "max_model_len": max_context, "tokens": tokens, "token_strs": None})
