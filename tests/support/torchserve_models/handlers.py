"""Handlers for a TorchServe, run by its own Python: one file with an entry point per model."""

import json

from ts.handler_utils.utils import send_intermediate_predict_response
from ts.torch_handler.request_envelope.json import JSONEnvelope
from ts.torch_handler.request_envelope.kserve import KServeEnvelope
from ts.torch_handler.request_envelope.kservev2 import KServev2Envelope
from ts.utils.util import PredictionException


def plain(data, context):
    """Returns a text in capitals, twice the numbers of a list, or the fields of a multipart body; fails on demand."""
    if data is None:  # a call at load time
        return None
    row = data[0]
    if set(row) - {"data", "body"}:
        return [_described(row)]
    body = row.get("data", row.get("body"))
    if isinstance(body, list):
        return [_twice(body)]
    content = bytes(body) if isinstance(body, (bytes, bytearray)) else body.encode()
    if content == b"fail":
        raise ValueError("the handler failed")
    if content == b"teapot":
        raise PredictionException("I am a teapot", 418)
    if content == b"image":
        context.set_response_content_type(0, "image/png")
        return [b"\x89PNG\xff"]
    if content.startswith(b"json "):
        return [json.loads(content[5:])]
    if content == b"headers":
        return [dict(context._request_processor[0]._request_header)]
    return [content.decode().upper()]


def texts(data, context):
    """Streams word by word, a text as texts and {"prompt"} as objects; `fail` fails."""
    if data is None:
        return None
    body = data[0].get("data", data[0].get("body"))
    is_object = isinstance(body, dict)
    text = body["prompt"] if is_object else body if isinstance(body, str) else bytes(body).decode()
    words = text.split(" ")
    for word in words[:-1]:
        if word == "fail":
            raise ValueError("the handler failed")
        piece = json.dumps({"text": word + " ", "tokens": 1}) if is_object else word + " "
        send_intermediate_predict_response([piece], context.request_ids, "", 200, context)
    return [json.dumps({"text": words[-1], "tokens": 1}) if is_object else words[-1]]


def _rows(rows, context):
    return [_twice(row) for row in rows]


def _tensors(tensors, context):
    return [_twice(tensor["data"]) for tensor in tensors]


def enveloped(data, context):
    """Choose the envelope by the form of the body. TorchServe has one envelope for a whole server, and wraps an entry
    point in the same way (`model_loader.py`)."""
    if data is None:
        return None
    body = data[0].get("data", data[0].get("body"))
    content = json.loads(bytes(body)) if isinstance(body, (bytes, bytearray)) else body
    if "inputs" in content:
        return KServev2Envelope(_tensors).handle(data, context)
    first = content["instances"][0]
    envelope = KServeEnvelope if isinstance(first, dict) and "data" in first else JSONEnvelope
    return envelope(_rows).handle(data, context)


def _twice(value):
    if isinstance(value, list):
        return [_twice(item) for item in value]
    if isinstance(value, dict):
        return {key: _twice(item) for key, item in value.items()}
    if isinstance(value, (bytes, bytearray)):
        return "bytes " + bytes(value).hex()
    return value if isinstance(value, bool) else value * 2


def _described(row):
    return {name: value.hex() if isinstance(value, bytearray) else value for name, value in row.items()}
