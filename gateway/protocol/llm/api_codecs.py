"""The APIs of OpenAI and Anthropic, each with its readers and writers, for clients and for engines."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from gateway.protocol.llm import chat_request as chat
from gateway.protocol.llm import completions
from gateway.protocol.llm import messages_request as messages
from gateway.protocol.llm import responses_request as responses
from gateway.protocol.llm.canonical import Generation
from gateway.protocol.llm.chat_reply import ChatReplyReader, ChatReplyWriter
from gateway.protocol.llm.completions import CompletionsReplyReader, CompletionsReplyWriter
from gateway.protocol.llm.messages_reply import MessagesReplyReader, MessagesReplyWriter
from gateway.protocol.llm.responses_reply import ResponsesReplyReader, ResponsesReplyWriter
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
    write_request: Callable[..., tuple[bytes, list[str]]]  # for `model`; with the names of what it had to `drop`
    reply_reader: Callable[[], ReplyReader]
    reply_writer: MakeWriter


API_CODECS: dict[LlmApi, ApiCodec] = {
    LlmApi.CHAT: ApiCodec(
        "chat/completions", "chatcmpl-", chat.read_request, chat.write_request, ChatReplyReader, ChatReplyWriter
    ),
    LlmApi.COMPLETIONS: ApiCodec(
        "completions",
        "cmpl-",
        completions.read_request,
        completions.write_request,
        CompletionsReplyReader,
        CompletionsReplyWriter,
    ),
    LlmApi.RESPONSES: ApiCodec(
        "responses",
        "resp_",
        responses.read_request,
        responses.write_request,
        ResponsesReplyReader,
        ResponsesReplyWriter,
    ),
    LlmApi.MESSAGES: ApiCodec(
        "messages", "msg_", messages.read_request, messages.write_request, MessagesReplyReader, MessagesReplyWriter
    ),
}
