"""TorchServe as an engine: what a V2 client asks of it, and what the client reads of its answer. Pure.

TorchServe knows no tensors. A model is a handler in Python that gets a body, or parts with names, and answers with
bytes, a text, or what Python writes as JSON. What the handler takes is a setting of the server (`service_envelope`),
which a rule names (`envelope:`) and a request may name instead (parameter `envelope`):

    envelope   inputs                                what TorchServe is sent
    body       one, BYTES of one element             its bytes; content type by parameter `content_type`
    body       one, of another datatype              its values as nested JSON arrays
    body       several                               multipart, a part for each under its name, written as above
    json       any, with equal first axes            {"instances": [{name: value, ...}, ...]}, one for each row;
                                                     an input named `instances` alone is the rows themselves;
                                                     bytes that are not UTF-8 are {"b64": ...}
    kserve     the same                              the same, but for bytes that are not UTF-8
    kservev2   any                                   V2's JSON; of BYTES it reads the first element alone

    answer                                           outputs
    JSON: numbers, texts or booleans, one or nested  one, `output`: INT64, FP64, BOOL or BYTES of the arrays' shape
    {"predictions": ...}, the only member            the same of what is in it; of objects with equal members, one each
    {"outputs": [...]} where it was asked kservev2   as it says
    another JSON object, outputs wanted by name      its members of those names
    whatever else                                    one, `output`: BYTES of one element, parameter `content_type`

The only output takes the name that the client asks for. Where TorchServe names no content type, as it does not for what
a handler returns without one, an answer that begins like a JSON array or object and is one is JSON. Refused: a BYTES of
several elements in a plain body, where TorchServe would see one request; tensors without elements or in shared memory;
classification; parameters without a meaning here. `sequence_id`, `sequence_start` and `sequence_end` become the headers
that TorchServe's stateful models read.

`generate` sends the text as it is, or in the envelope; what comes beside it makes it the JSON object that TorchServe's
own handlers of language models take ({"prompt": text, name: value, ...}), and then objects with a `text` are expected
back. Handlers that speak OpenAI's API are reached better by `protocol: openai` and
`base_path: /predictions/MODEL/VERSION/v1`.

Source: TorchServe 0.12: `InferenceRequestHandler.java`, `RestJob.java`, `ts/protocol/otf_message_handler.py`,
`ts/torch_handler/request_envelope/`; tried against a real one (tests/protocol/torchserve).
"""
