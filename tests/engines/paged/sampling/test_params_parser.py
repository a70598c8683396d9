"""Sampling fields in requests, by the names of several engines."""

import json

import pytest

from engines.core.errors import EngineError, ErrorCode
from engines.paged.base.types import GrammarSpec, SamplingParams
from engines.paged.sampling.params_parser import read_default_params, read_params

READ = [
    ({}, {}),
    ({"max_tokens": 5}, {"max_tokens": 5}),
    ({"max_completion_tokens": 5, "max_tokens": 5}, {"max_tokens": 5}),
    ({"min_length": 3}, {"min_tokens": 3}),
    ({"temperature": 0.7, "top_p": 0.9, "min_p": 0.05}, {"temperature": 0.7, "top_p": 0.9, "min_p": 0.05}),
    ({"temperature": 0}, {"temperature": 0.0}),
    ({"temperature": 1e-7}, {"temperature": 0.0}),
    ({"temperature": None, "stop": None}, {}),
    ({"do_sample": False, "temperature": 0.7}, {"temperature": 0.0}),
    ({"top_k": -1}, {"top_k": 0}),
    ({"top_k": 0}, {"top_k": 0}),
    ({"runtime_top_k": 20, "runtime_top_p": 0.5}, {"top_k": 20, "top_p": 0.5}),
    ({"seed": 7}, {"seed": 7}),
    ({"random_seed": 18446744073709551615}, {"seed": 18446744073709551615}),
    ({"seed": -1}, {"seed": None}),
    ({"stop": "a"}, {"stop": ("a",)}),
    ({"stop_words": ["a", "b", "a"]}, {"stop": ("a", "b")}),
    ({"stop": ["a"], "stop_words": ["b"]}, {"stop": ("a", "b")}),
    ({"stop": []}, {"stop": ()}),
    ({"stop_token_ids": [3, 4], "end_id": 2}, {"stop_token_ids": (3, 4, 2)}),
    ({"bad_words": ["x"]}, {"bad_words": ("x",)}),
    ({"n": 2, "best_of": 4}, {"n": 2, "best_of": 4}),
    ({"beam_width": 1}, {"beam_width": 0}),
    ({"num_beams": 4, "len_penalty": 0.5, "early_stopping": True},
     {"beam_width": 4, "length_penalty": 0.5, "early_stopping": True}),
    ({"use_beam_search": True, "best_of": 3}, {"beam_width": 3, "best_of": 3}),
    ({"use_beam_search": False, "beam_width": 3}, {"beam_width": 0}),
    ({"repetition_penalty": 1.1, "presence_penalty": -0.5, "frequency_penalty": 2},
     {"repetition_penalty": 1.1, "presence_penalty": -0.5, "frequency_penalty": 2.0}),
    ({"logit_bias": {"5": -100, 6: 1.5}}, {"logit_bias": {5: -100.0, 6: 1.5}}),
    ({"logprobs": 3}, {"logprobs": 3}),
    ({"logprobs": 0}, {"logprobs": 0}),
    ({"logprobs": True}, {"logprobs": 0}),
    ({"logprobs": True, "top_logprobs": 5}, {"logprobs": 5}),
    ({"logprobs": False, "top_logprobs": 0}, {"logprobs": None}),
    ({"prompt_logprobs": True}, {"prompt_logprobs": 0}),
    ({"prompt_logprobs": 2}, {"prompt_logprobs": 2}),
    ({"ignore_eos": True, "skip_special_tokens": False, "include_stop_str_in_output": True},
     {"ignore_eos": True, "skip_special_tokens": False, "include_stop_str_in_output": True}),
    # as text: parameters of V2 requests have no floats
    ({"temperature": "0.7", "top_k": "5", "ignore_eos": "true", "seed": "18446744073709551615"},
     {"temperature": 0.7, "top_k": 5, "ignore_eos": True, "seed": 18446744073709551615}),
    ({"max_tokens": 5.0}, {"max_tokens": 5}),
    # other engines' fields with values that have no effect
    ({"pad_id": 3, "detokenize": True, "typical_p": 1.0, "beam_search_diversity_rate": 0}, {}),
    ({"extra_args": {"a": 1}}, {"extra": {"a": 1}}),
]  # fmt: skip


@pytest.mark.parametrize("fields, expected", READ)
def test_fields(fields, expected):
    """Every engine's name of a field is accepted; values without an effect are ignored."""
    assert read_params(fields) == SamplingParams(**expected)


SCHEMA = {"type": "object", "properties": {"b": {"type": "integer"}, "a": {"type": "string"}}}
TEXT = json.dumps(SCHEMA)
GRAMMARS = [
    ({"response_format": {"type": "text"}}, None),
    ({"response_format": {"type": "json_object"}}, GrammarSpec("json_object")),
    ({"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}},
     GrammarSpec("json_schema", TEXT)),
    ({"guided_json": SCHEMA}, GrammarSpec("json_schema", TEXT)),
    ({"guided_json": TEXT}, GrammarSpec("json_schema", TEXT)),
    ({"guided_regex": "a+"}, GrammarSpec("regex", "a+")),
    ({"guided_choice": ["ja", "nein"]}, GrammarSpec("choice", '["ja", "nein"]')),
    ({"guided_grammar": 'start: "a"'}, GrammarSpec("lark", 'start: "a"')),
    ({"guided_json_object": True}, GrammarSpec("json_object")),
    ({"guided_json_object": False}, None),
    ({"structured_outputs": {"json": SCHEMA, "regex": None}}, GrammarSpec("json_schema", TEXT)),
    ({"structured_outputs": {"choice": ["a"]}}, GrammarSpec("choice", '["a"]')),
    ({"guided_decoding_guide_type": "json"}, GrammarSpec("json_object")),
    ({"guided_decoding_guide_type": "regex", "guided_decoding_guide": "a"}, GrammarSpec("regex", "a")),
]  # fmt: skip


@pytest.mark.parametrize("fields, grammar", GRAMMARS)
def test_grammars(fields, grammar):
    """The grammar is read from any engine's fields, with a schema's properties in their order."""
    assert read_params(fields).grammar == grammar


WRONG = [
    ({"max_tokens": 0}, "max_tokens: 0 will not do; it must be a whole number of at least 1"),
    ({"max_tokens": 2.5}, "max_tokens: 2.5 will not do; it must be a whole number"),
    ({"max_tokens": True}, "max_tokens: true will not do"),
    ({"max_tokens": 4, "max_completion_tokens": 5}, "max_completion_tokens: it is the same as max_tokens"),
    ({"min_tokens": 9, "max_tokens": 8}, "min_tokens: 9 will not do; it must be at most max_tokens, 8"),
    ({"temperature": "hot"}, 'temperature: "hot" will not do; it must be a number between 0 and 100'),
    ({"temperature": -0.1}, "temperature: -0.1 will not do"),
    ({"temperature": float("nan")}, "temperature: NaN will not do"),
    ({"temperature": "inf"}, 'temperature: "inf" will not do'),
    ({"top_p": 0}, "top_p: 0 will not do; it must be a number above 0 and at most 1"),
    ({"top_p": 1.1}, "top_p: 1.1 will not do"),
    ({"top_k": -2}, "top_k: -2 will not do; it must be a whole number between -1"),
    ({"top_k": 1 << 40}, "top_k"),
    ({"min_p": 2}, "min_p: 2 will not do; it must be a number between 0 and 1"),
    ({"repetition_penalty": 0}, "repetition_penalty: 0 will not do; it must be a number between 0.01 and 100"),
    ({"presence_penalty": 3}, "presence_penalty: 3 will not do; it must be a number between -2 and 2"),
    ({"stop": ""}, 'stop: "" will not do; it must be a text or a list of texts, none of them empty'),
    ({"stop": [1]}, r"stop: \[1\] will not do"),
    ({"stop": ["x"] * 100}, "stop: .* at most 64 texts"),
    ({"stop_token_ids": [1.5]}, "stop_token_ids: .* a token id"),
    ({"stop_token_ids": -1}, "stop_token_ids"),
    ({"logit_bias": {"a": 1}}, r"logit_bias\[a\]: 1 will not do"),
    ({"logit_bias": {"1": 101}}, r"logit_bias\[1\]: 101 will not do; .* between -100 and 100"),
    ({"logit_bias": [1]}, "logit_bias"),
    ({"n": 0}, "n: 0 will not do; it must be a whole number between 1 and 128"),
    ({"n": 3, "best_of": 2}, "best_of: 2 will not do; it must be at least n, 3"),
    ({"logprobs": 21}, "logprobs: 21 will not do; it must be a whole number between 0 and 20"),
    ({"logprobs": "many"}, "logprobs"),
    ({"top_logprobs": 3}, "top_logprobs: 3 will not do; it must be 0 or absent where logprobs is not true"),
    ({"seed": 1 << 64}, "seed: 18446744073709551616 will not do"),
    ({"seed": "x"}, 'seed: "x" will not do'),
    ({"ignore_eos": "maybe"}, 'ignore_eos: "maybe" will not do; it must be true or false'),
    ({"early_stopping": "never"}, "early_stopping"),
    ({"use_beam_search": True}, "use_beam_search: true needs a beam_width"),
    ({"beam_width": 3, "guided_regex": "a"}, "beam_width: beam search cannot follow a grammar"),
    ({"typical_p": 0.5}, "typical_p: 0.5 will not do; it must be 1, as this engine does nothing else"),
    ({"extra_args": 3}, "extra_args: 3 will not do; it must be an object"),
    ({"temprature": 1}, "temprature: no such field; did you mean temperature?"),
    ({"xyzzy": 1}, "xyzzy: no such field; leave it out"),
    ({"response_format": "json"}, 'response_format: "json" will not do'),
    ({"response_format": {"type": "xml"}}, 'response_format.type: "xml" will not do; it must be text, json_object or'),
    ({"response_format": {"type": "json_schema"}}, "response_format.json_schema: null will not do"),
    ({"response_format": {"type": "json_schema", "json_schema": {}}}, "response_format.json_schema.schema: null"),
    ({"guided_json": "{"}, 'guided_json: "{" will not do; it must be a JSON schema, .* no JSON'),
    ({"guided_json": 3}, "guided_json: 3 will not do"),
    ({"guided_choice": []}, r"guided_choice: \[\] will not do; it must be a list of one text or more"),
    ({"guided_regex": ""}, "guided_regex"),
    ({"structured_outputs": {"xml": 1}}, "structured_outputs.xml: no such field; known are json, regex"),
    ({"guided_regex": "a", "guided_json": {}}, "guided_regex: guided_json says what the text must be already"),
    ({"guided_decoding_guide": "a"}, "guided_decoding_guide: it needs guided_decoding_guide_type"),
    ({"guided_decoding_guide_type": "xml"}, "guided_decoding_guide_type"),
]


@pytest.mark.parametrize("fields, message", WRONG)
def test_wrong_fields(fields, message):
    """The error for an invalid field has its name, its value and the valid values."""
    with pytest.raises(EngineError, match=message) as raised:
        read_params(fields)
    assert raised.value.code is ErrorCode.INVALID_ARG


def test_a_long_value_is_abbreviated_in_errors():
    """An error abbreviates a long value."""
    with pytest.raises(EngineError) as raised:
        read_params({"temperature": "x" * 1_000_000})
    assert len(str(raised.value)) < 200


def test_defaults_stand_where_a_request_is_silent():
    """A request's fields override the model's defaults."""
    defaults = SamplingParams(temperature=0.6, top_p=0.95, max_tokens=100, stop=("x",))
    read = read_params({"top_p": 1}, defaults)
    assert (read.temperature, read.top_p, read.max_tokens, read.stop) == (0.6, 1.0, 100, ("x",))


def test_a_greedy_default_can_be_left():
    """With a greedy default a request samples if it sets a temperature or do_sample."""
    greedy = SamplingParams(temperature=0.0)
    assert read_params({}, greedy).temperature == 0
    assert read_params({"do_sample": True}, greedy).temperature == 1
    assert read_params({"temperature": 0.3}, greedy).temperature == 0.3


RECOMMENDED = [
    ({}, {}),
    ({"temperature": 0.6, "top_k": 20, "top_p": 0.95, "repetition_penalty": 1.05, "do_sample": True},
     {"temperature": 0.6, "top_k": 20, "top_p": 0.95, "repetition_penalty": 1.05}),
    ({"do_sample": False, "temperature": 0.6}, {"temperature": 0.0}),
    ({"max_new_tokens": 2048, "eos_token_id": 2, "transformers_version": "4"}, {"max_tokens": 2048}),
    ({"temperature": None}, {}),
]  # fmt: skip


@pytest.mark.parametrize("config, expected", RECOMMENDED)
def test_a_models_recommendations(tmp_path, config, expected):
    """The defaults come from the model's generation_config.json."""
    (tmp_path / "generation_config.json").write_text(json.dumps(config))
    assert read_default_params(tmp_path) == SamplingParams(**expected)


def test_no_recommendations(tmp_path):
    """A missing generation_config.json is fine; an invalid one is named in the error."""
    assert read_default_params(tmp_path) == SamplingParams()
    for content, message in (("{", "is no JSON"), ("[]", "must be"), ('{"top_p": 7}', "top_p: 7 will not do")):
        (tmp_path / "generation_config.json").write_text(content)
        with pytest.raises(EngineError, match=rf"generation_config\.json.* {message}"):
            read_default_params(tmp_path)
