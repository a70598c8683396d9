"""The APIs of OpenAI and Anthropic, each with its readers and writers, for clients and for engines."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from gateway.protocol.llm import (
    chat_reply,
    chat_request,
    completions,
    messages_reply,
    messages_request_reader,
    messages_request_writer,
    responses_reply,
    responses_request,
)
from gateway.protocol.llm.canonical import Generation
from gateway.protocol.llm.translation import ReplyReader, ReplyWriter
from gateway.protocol.operations import LlmApi

# Makes the writer of one reply, from a generation and what the engine may not report: `id`, `created`, `model`.
MakeWriter = Callable[..., ReplyWriter]


@dataclass(frozen=True, slots=True)
class ApiCodec:
    """The codec of one API. `path` follows the base path, `id_prefix` begins the id of a reply that has none.

    Raises: GatewayError(BAD_REQUEST) that names the field, by `read_request`; GatewayError(UNSUPPORTED) that names what
    the API has no place for, by `write_request`.
    """

    path: str
    id_prefix: str
    read_request: Callable[[bytes], Generation]
    reply_writer: MakeWriter
    write_request: Callable[..., tuple[bytes, list[str]]]  # for `model`; with the names of what it had to `drop`
    reply_reader: Callable[[], ReplyReader]


API_CODECS: dict[LlmApi, ApiCodec] = {
    LlmApi.CHAT: ApiCodec(
        "chat/completions",
        "chatcmpl-",
        chat_request.read_request,
        chat_reply.ChatReplyWriter,
        chat_request.write_request,
        chat_reply.ChatReplyReader,
    ),
    LlmApi.COMPLETIONS: ApiCodec(
        "completions",
        "cmpl-",
        completions.read_request,
        completions.CompletionsReplyWriter,
        completions.write_request,
        completions.CompletionsReplyReader,
    ),
    LlmApi.RESPONSES: ApiCodec(
        "responses",
        "resp_",
        responses_request.read_request,
        responses_reply.ResponsesReplyWriter,
        responses_request.write_request,
        responses_reply.ResponsesReplyReader,
    ),
    LlmApi.MESSAGES: ApiCodec(
        "messages",
        "msg_",
        messages_request_reader.read_request,
        messages_reply.MessagesReplyWriter,
        messages_request_writer.write_request,
        messages_reply.MessagesReplyReader,
    ),
}
