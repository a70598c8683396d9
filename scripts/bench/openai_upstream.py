"""The canned engine of language models, which answers at once: OpenAI's API and V2's generate_stream.

Runs as a process of its own: `python -m bench.openai_upstream --port P`. It answers by path:

    GET  anything                     what routers request to check an engine, else 200 without a body
    POST /v1/chat/completions         a whole answer, or tokens if the body has `"stream": true`
    POST /v2/models/M/generate_stream tokens, each one chunk written on its own, --gap-milliseconds apart

A request that names another model is answered with 404, which shows whether a proxy has renamed the model.
"""

import argparse
import re

import uvloop

from bench import openai_messages as messages
from bench.messages import compact_json
from bench.processes import raise_file_limit
from bench.upstream import EMPTY, LAST_CHUNK, STREAM_HEAD, CannedConnection, answer, serve

_NAMES_MODEL = re.compile(rb'"model": ?"%s"' % messages.MODEL.encode())
_STREAMS = re.compile(rb'"stream": ?true')


def _json_answer(document: object) -> bytes:
    return answer("application/json", compact_json(document))


_CARD = {"id": messages.MODEL, "object": "model", "created": 0, "owned_by": "vllm", "max_model_len": 131_072}
_INFO = {"model_path": messages.MODEL, "served_model_name": messages.MODEL, "is_generation": True}
TOLD = {
    b"/v1/models": _json_answer({"object": "list", "data": [_CARD]}),
    b"/get_model_info": _json_answer(_INFO),
    b"/model_info": _json_answer(_INFO),
    b"/get_server_info": _json_answer(_INFO | {"version": "0.5.0"}),
    b"/server_info": _json_answer(_INFO | {"version": "0.5.0"}),
    f"/v2/models/{messages.ON_TRITON}".encode(): _json_answer(messages.GENERATE_METADATA),
}
CHAT_PATH = messages.CHAT_PATH.encode()
GENERATE_PATH = messages.GENERATE_PATH.encode()
CHAT_ANSWER = answer("application/json", messages.chat_answer())


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


STREAM_BEGIN = STREAM_HEAD + _chunk(messages.STREAM_BEGIN)
STREAM_END = _chunk(messages.STREAM_END) + LAST_CHUNK


class Engine(CannedConnection):
    """One connection to the engine."""

    MAX_KEPT_BODY_BYTES = 4096  # only short requests are searched for the model and `stream`

    def reply(self, method: bytes, path: bytes, body: bytes) -> None:
        if method == b"GET":
            self.write(TOLD.get(path, EMPTY))
        elif path == GENERATE_PATH:
            self.write(STREAM_HEAD)
            self.stream(lambda serial: _chunk(messages.generate_token(serial)))
        elif path != CHAT_PATH or (body and not _NAMES_MODEL.search(body)):
            self.refuse(b"404 Not Found")
        elif _STREAMS.search(body):
            self.write(STREAM_BEGIN)
            self.stream(lambda serial: _chunk(messages.chat_token(serial)), STREAM_END)
        else:
            self.write(CHAT_ANSWER)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--gap-milliseconds", type=float, default=10.0)
    options = parser.parse_args()
    raise_file_limit()
    uvloop.run(serve(options.port, lambda: Engine(0, options.gap_milliseconds / 1000)))


if __name__ == "__main__":
    main()
