"""The table of sampling fields: each field reaches the engine from every API that has it."""

from typing import Any

import orjson
import pytest

from engines.paged.base.types import SamplingParams
from engines.paged.sampling.params_parser import read_params
from gateway.protocol.llm import generate_client
from gateway.protocol.llm.api_codecs import API_CODECS
from gateway.protocol.llm.canonical import Generation
from gateway.protocol.llm.sampling_fields import SAMPLING_FIELDS, FieldType, SamplingField
from gateway.protocol.operations import LlmApi

OF_ENGINE = [field for field in SAMPLING_FIELDS if field.in_engine]
BODIES: dict[LlmApi, dict[str, Any]] = {
    LlmApi.CHAT: {"model": "m", "messages": [{"role": "user", "content": "hi"}]},
    LlmApi.COMPLETIONS: {"model": "m", "prompt": "hi"},
    LlmApi.RESPONSES: {"model": "m", "input": "hi"},
    LlmApi.MESSAGES: {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "hi"}]},
    LlmApi.GENERATE: {"text_input": "hi"},
}


def value_of(field: SamplingField) -> Any:
    """A value within the field's bounds that is not the default."""
    match field.type:
        case FieldType.INTEGER:
            return 2
        case FieldType.NUMBER:
            return 0.5
        case FieldType.FLAG:
            return field.idle != (True,)
        case FieldType.TEXT:
            return "low"
        case FieldType.TEXTS:
            return ["x", "y"]
        case FieldType.TOKEN_IDS:
            return [3, 4]
    return {"5": 1.5}


def read(api: LlmApi, fields: dict[str, Any]) -> Generation:
    body = orjson.dumps(BODIES[api] | fields)
    if api is LlmApi.GENERATE:
        return generate_client.read_request(body, model="m")
    return API_CODECS[api].read_request(body)


def params_of(options: Any) -> SamplingParams:
    return read_params(options | ({"best_of": 2} if options.get("n") == 2 else {}))


@pytest.mark.parametrize("api", BODIES)
@pytest.mark.parametrize("field", OF_ENGINE, ids=lambda field: field.name)
def test_a_field_reaches_the_engine(field: SamplingField, api: LlmApi) -> None:
    """A field sent under its own name sets the engine's parameter of that name."""
    value = value_of(field)
    expected = getattr(params_of({field.name: value}), field.name)
    assert expected != getattr(SamplingParams(), field.name)
    assert getattr(params_of(read(api, {field.name: value}).options), field.name) == expected


@pytest.mark.parametrize("field", SAMPLING_FIELDS, ids=lambda field: field.name)
def test_other_names(field: SamplingField) -> None:
    """Aliases in OpenAI's bodies, V2's tensors and the engine's options all set the same field."""
    value = value_of(field)
    for alias in field.aliases:
        assert read(LlmApi.CHAT, {alias: value}).options == {field.name: value}
    for tensor in field.tensors:
        assert read(LlmApi.GENERATE, {tensor: value}).options == {field.name: value}
    for alias in field.engine_aliases:
        assert params_of({alias: value}) == params_of({field.name: value})


WITH_OWN_FORMS = ("logprobs", "response_format", "tool_choice")
WRITTEN = [(field, api) for field in SAMPLING_FIELDS for api in field.apis if field.name not in WITH_OWN_FORMS]


@pytest.mark.parametrize("field, api", WRITTEN, ids=lambda each: getattr(each, "name", each))
def test_engines_receive_what_their_api_has(field: SamplingField, api: LlmApi) -> None:
    """A field is sent under its own name to engines whose API has it."""
    value = value_of(field)
    written, lost = API_CODECS[api].write_request(
        Generation("m", "hi", options={field.name: value}), model="m", drop=False
    )
    assert orjson.loads(written)[field.name] == value and not lost
