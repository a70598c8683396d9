"""Hostile requests: small on the wire, costly for a gateway that reads them carelessly."""

import gzip
import struct
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from random import Random

MOST_WIRE_BYTES = 1_000_000
_BIG = 20_000_000  # what a careless reader inflates

RULES = """version: 1
engines:
  v2: {{endpoints: ["{url}"]}}
  grpc: {{endpoints: ["{grpc}"]}}
  chat: {{endpoints: ["{url}"], protocol: openai}}
identity: {{trust_header: true}}
routes:
  - {{name: told, match: {{parameter: {{level: high}}}}, engine: v2}}
  - {{name: tensor, match: {{model: tensor, input: {{datatype: BYTES}}}}, engine: v2}}
  - {{name: picture, match: {{has_image: true, model: seen}}, engine: chat}}
  - {{name: bridged, match: {{model: bridged}}, engine: grpc}}
  - {{name: kept, match: {{model: kept}}, engine: chat, session: {{history: true}}}}
  - {{name: text, match: {{model: text}}, engine: v2}}
  - {{name: chat, match: {{protocol: openai}}, engine: chat}}
  - {{name: all, engine: v2}}
"""


@dataclass(frozen=True, slots=True)
class Hostile:
    """A request, or several on one connection. `wire` makes the bytes of an HTTP/1.1 connection, `call` a path, an
    encoding and a message of a gRPC call."""

    name: str
    wire: Callable[[], bytes] | None = None
    call: Callable[[], tuple[str, str, bytes]] | None = None


def post(path: str, body: bytes, *fields: str) -> bytes:
    lines = [f"POST {path} HTTP/1.1", "host: h", f"content-length: {len(body)}", *fields]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def zipped(path: str, body: bytes, *fields: str) -> bytes:
    return post(path, gzip.compress(body, 6), "content-encoding: gzip", *fields)


def repeated(piece: bytes, size: int) -> bytes:
    return piece * (size // len(piece))


CHAT, MESSAGES, RESPONSES, EMBEDDINGS = "/v1/chat/completions", "/v1/messages", "/v1/responses", "/v1/embeddings"
INFER, GENERATE = "/v2/models/{}/infer", "/v2/models/{}/generate"
_MESSAGE = b'{"role":"user","content":""},'


def chat(model: str, messages: bytes = b"", more: bytes = b"") -> bytes:
    turns = messages or b'{"role":"user","content":"hi"}'
    return b'{"model":"%b","messages":[%b]%b}' % (model.encode(), turns, more)


def infer(data: bytes, datatype: str = "FP32", shape: str = "1", more: bytes = b"") -> bytes:
    head = f'{{"inputs":[{{"name":"x","datatype":"{datatype}","shape":[{shape}],"data":['
    return head.encode() + data + b"]}]" + more + b"}"


def doubled(content: bytes, key: bytes = b"model") -> bytes:
    """A body whose model is named twice, with this between."""
    return b'{"model":"x","a":[%b],"%b":"m"}' % (content, key)


def members(count: int) -> bytes:
    return b",".join(b'"k%d":0' % at for at in range(count))


def field(number: int, value: bytes) -> bytes:
    size, out = len(value), bytearray([number << 3 | 2])
    while size > 127:
        out.append(size & 127 | 128)
        size >>= 7
    return bytes([*out, size]) + value


_UNARY = "/inference.GRPCInferenceService/ModelInfer"


def _call(message: bytes, path: str = _UNARY) -> tuple[str, str, bytes]:
    return path, "", struct.pack("!BI", 0, len(message)) + message


def _zipped_call(message: bytes, path: str = _UNARY) -> tuple[str, str, bytes]:
    data = gzip.compress(message, 6)
    return path, "gzip", struct.pack("!BI", 1, len(data)) + data


def _of_json() -> Iterator[Hostile]:
    """Documents, for each of the readers of the gateway."""
    contents = {
        "objects": (b"{},", b"{}"),
        "zeros": (b"0,", b"0"),
        "numbers": (b"1.5,", b"1"),
        "texts": (b'"ab",', b'""'),
        "nested": (b"[[[[[[]]]]]],", b"[]"),
        "members": (b'{"":{"":0}},', b"{}"),
    }
    for name, (piece, last) in contents.items():
        wide, short = (lambda size, piece=piece, last=last: repeated(piece, size) + last), MOST_WIRE_BYTES - 2000

        def made(path: str, body: Callable[[bytes], bytes], size: int, wide=wide) -> Callable[[], bytes]:  # type: ignore[no-untyped-def]
            return lambda: (zipped if size == _BIG else post)(path, body(wide(size)))

        yield Hostile(f"model twice, {name}, gzip", made(CHAT, doubled, _BIG))
        yield Hostile(f"model twice, {name}", made(CHAT, doubled, short))
        told = INFER.format("told")
        yield Hostile(f"parameter rule, {name}, gzip", made(told, lambda wide: b'{"a":[%b]}' % wide, _BIG))
        yield Hostile(f"parameter rule, {name}", made(told, lambda wide: b'{"a":[%b]}' % wide, short))
        yield Hostile(f"REST to gRPC, {name}, gzip", made(INFER.format("bridged"), infer, _BIG))
        yield Hostile(f"REST to gRPC, {name}", made(INFER.format("bridged"), infer, short))
        yield Hostile(
            f"translated, {name}, gzip", made(CHAT, lambda wide: chat("text", more=b',"stop":[%b]' % wide), _BIG)
        )


def _within_the_ratio() -> Iterator[Hostile]:
    """Documents of nearly 8 MB that compress no better than a hundred times."""
    noise = Random(0).randbytes(125_000).hex().encode()
    size = 7_500_000
    pieces = {"objects": b"{},", "zeros": b"0,", "numbers": b"1.5,", "texts": b'"ab",', "members": b'{"":0},'}
    for name, piece in pieces.items():
        wide = lambda piece=piece: repeated(piece, size) + b'"' + noise + b'"'  # noqa: E731
        yield Hostile(f"model twice, {name}, dense", lambda wide=wide: zipped(CHAT, doubled(wide())))
        told = lambda wide=wide: zipped(INFER.format("told"), b'{"a":[%b]}' % wide())  # noqa: E731
        yield Hostile(f"parameter rule, {name}, dense", told)
        yield Hostile(
            f"REST to gRPC, {name}, dense", lambda wide=wide: zipped(INFER.format("bridged"), infer(wide(), "BYTES"))
        )
        yield Hostile(
            f"translated, {name}, dense", lambda wide=wide: zipped(CHAT, chat("text", more=b',"stop":[%b]' % wide()))
        )
    text = lambda: b'"' + repeated(b"Well, {this} is [it]: ", size) + noise + b'"'  # noqa: E731
    yield Hostile("a text, translated, dense", lambda: zipped(CHAT, chat("text", more=b',"user":%b' % text())))
    messages = lambda: repeated(_MESSAGE, size) + b'{"role":"user","content":"%b"}' % noise  # noqa: E731
    yield Hostile("messages, history, dense", lambda: zipped(CHAT, chat("kept", messages()), "x-session-id: s"))
    yield Hostile("messages, translated, dense", lambda: zipped(CHAT, chat("text", messages())))


def _of_generations() -> Iterator[Hostile]:
    session = "x-session-id: s"
    for size, zips in ((6_000_000, True), (_BIG, True), (MOST_WIRE_BYTES - 2000, False)):
        put, how = (zipped, f"{size // 1_000_000} MB gzip") if zips else (post, "plain")
        many = lambda size=size, piece=_MESSAGE: repeated(piece, size)[:-1]  # noqa: E731
        yield Hostile(f"messages, history, {how}", lambda p=put, m=many: p(CHAT, chat("kept", m()), session))
        yield Hostile(f"messages, translated, {how}", lambda p=put, m=many: p(CHAT, chat("text", m())))
        yield Hostile(f"messages, has_image, {how}", lambda p=put, m=many: p(CHAT, chat("seen", m())))
        yield Hostile(f"messages, Anthropic, {how}", lambda p=put, m=many: p(MESSAGES, chat("text", m())))
        parts = lambda m=many: b'{"role":"user","content":[%b]}' % m(piece=b'{"type":"text","text":""},')  # noqa: E731
        yield Hostile(f"parts, translated, {how}", lambda p=put, m=parts: p(CHAT, chat("text", m())))
        tools = lambda m=many: b',"tools":[%b]' % m(piece=b'{"type":"function","function":{"name":"f"}},')  # noqa: E731
        yield Hostile(f"tools, translated, {how}", lambda p=put, m=tools: p(CHAT, chat("text", more=m())))
        inputs = lambda m=many: b'{"model":"text","input":[%b]}' % m(piece=b'{"role":"user","content":""},')  # noqa: E731
        yield Hostile(f"items, Responses, {how}", lambda p=put, m=inputs: p(RESPONSES, m()))
        texts = lambda m=many: b'{"model":"text","input":[%b]}' % m(piece=b'"",')  # noqa: E731
        yield Hostile(f"inputs, embeddings, {how}", lambda p=put, m=texts: p(EMBEDDINGS, m()))
        tensors = lambda m=many: b'{"inputs":[%b]}' % m(piece=b'{"name":"","datatype":"FP32","shape":[]},')  # noqa: E731
        yield Hostile(f"inputs, tensor rule, {how}", lambda p=put, m=tensors: p(INFER.format("tensor"), m()))
        yield Hostile(f"inputs, REST to gRPC, {how}", lambda p=put, m=tensors: p(INFER.format("bridged"), m()))


def _of_names() -> Iterator[Hostile]:
    spelled = repeated(b'"model",', MOST_WIRE_BYTES - 2000) + b"0"
    yield Hostile("model as a value 124,750 times", lambda: post(CHAT, b'{"a":[%b],"model":"m"}' % spelled))
    yield Hostile("model as a value, gzip", lambda: zipped(CHAT, doubled(repeated(b'"model",', _BIG) + b"0")))
    escaped = doubled(repeated(b"{},", MOST_WIRE_BYTES - 2000) + b"0", b"\\u006dodel")
    yield Hostile("model by escapes", lambda: post(CHAT, escaped))
    yield Hostile("Model in another case, gzip", lambda: zipped(CHAT, doubled(repeated(b"{},", _BIG) + b"0", b"Model")))
    yield Hostile("quotes", lambda: post(CHAT, doubled(repeated(b'"",', MOST_WIRE_BYTES - 2000) + b"0")))
    yield Hostile("blanks, gzip", lambda: zipped(CHAT, b'{"model":"x",' + b" " * _BIG + b'"model":"m"}'))
    yield Hostile("one text, gzip", lambda: zipped(CHAT, doubled(b'"' + b"a" * _BIG + b'"')))
    yield Hostile("backslashes, gzip", lambda: zipped(CHAT, doubled(b'"' + b"\\\\" * (_BIG // 2) + b'"')))
    yield Hostile("depth 200,000", lambda: post(CHAT, doubled(b"[" * 200_000 + b"]" * 200_000)))
    yield Hostile(
        "100,000 keys, parameters", lambda: post(INFER.format("told"), b'{"parameters":{%b}}' % members(80_000))
    )
    keys = members(80_000)
    yield Hostile("80,000 keys, generate", lambda: post(GENERATE.format("told"), b'{"text_input":"",%b}' % keys))
    yield Hostile("80,000 keys, translated", lambda: post(CHAT, chat("text", more=b"," + keys)))
    yield Hostile("80,000 keys, history", lambda: post(CHAT, chat("kept", more=b"," + keys), "x-session-id: s"))


def _of_coding() -> Iterator[Hostile]:
    deflated = lambda: zlib.compress(doubled(repeated(b"{},", _BIG) + b"0"), 6)  # noqa: E731
    yield Hostile("deflate", lambda: post(CHAT, deflated(), "content-encoding: deflate"))
    nothing = lambda: gzip.compress(b"\0" * 300_000_000, 6)  # noqa: E731
    yield Hostile("300 MB of zeros, chat", lambda: post(CHAT, nothing(), "content-encoding: gzip"))
    yield Hostile("300 MB of zeros, rule", lambda: post(INFER.format("told"), nothing(), "content-encoding: gzip"))


def _of_connections() -> Iterator[Hostile]:
    small = post(INFER.format("m"), b"{}")
    yield Hostile("pipelined requests", lambda: small * (MOST_WIRE_BYTES // len(small)))
    unknown = b"GET /x HTTP/1.1\r\nhost: h\r\n\r\n"
    yield Hostile("pipelined 404s", lambda: unknown * (MOST_WIRE_BYTES // len(unknown)))
    chunked = b"POST /v2/models/told/infer HTTP/1.1\r\nhost: h\r\ntransfer-encoding: chunked\r\n\r\n"
    yield Hostile("chunks of a byte", lambda: chunked + b"1\r\n \r\n" * 160_000 + b"0\r\n\r\n")
    yield Hostile("a head of blank lines", lambda: b"\r\n" * 400_000 + small)
    fields = b"".join(b"a%d: b\r\n" % at for at in range(5000))[:60_000]
    yield Hostile("heads of 60 KB", lambda: (b"GET /v2 HTTP/1.1\r\nhost: h\r\n" + fields + b"a: b\r\n\r\n") * 15)


def _of_calls() -> Iterator[Hostile]:
    told = field(1, b"told")
    short = MOST_WIRE_BYTES - 2000
    for model in ("told", "bridged", "text"):
        name = field(1, model.encode())
        yield Hostile(f"gRPC {model}, zeros, gzip", call=lambda name=name: _zipped_call(name + field(7, b"\0" * _BIG)))
        yield Hostile(f"gRPC {model}, empty inputs", call=lambda name=name: _call(name + repeated(b"\x2a\0", short)))
        inputs = lambda name=name: _zipped_call(name + repeated(b"\x2a\0", _BIG))  # noqa: E731
        yield Hostile(f"gRPC {model}, empty inputs, gzip", call=inputs)
        yield Hostile(f"gRPC {model}, parameters", call=lambda name=name: _call(name + repeated(b"\x22\0", short)))
    axes = field(5, field(3, b"\1" * short))
    yield Hostile("gRPC told, axes", call=lambda: _call(told + axes))
    yield Hostile("gRPC names", call=lambda: _call(repeated(b"\x0a\1a", short)))
    yield Hostile("gRPC groups", call=lambda: _call(told + b"\xa3\x06" * 200_000 + b"\xa4\x06" * 200_000))
    one = struct.pack("!BI", 0, len(told)) + told
    stream = "/inference.GRPCInferenceService/ModelStreamInfer"
    yield Hostile("gRPC stream of small messages", call=lambda: (stream, "", repeated(one, short)))
    empty = struct.pack("!BI", 0, 0)
    yield Hostile("gRPC stream of empty messages", call=lambda: (stream, "", repeated(empty, short)))


SHAPES = [
    *_of_json(),
    *_within_the_ratio(),
    *_of_generations(),
    *_of_names(),
    *_of_coding(),
    *_of_connections(),
    *_of_calls(),
]
