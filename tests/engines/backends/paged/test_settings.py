"""Engine options from a model's configuration."""

from dataclasses import fields
from pathlib import Path

import pytest

from engines.backends.paged.autocomplete import INPUTS, OUTPUTS, complete
from engines.backends.paged.settings import read_options, read_settings
from engines.core.errors import EngineError
from engines.paged.base.options import EngineOptions, Speculation
from gateway.protocol.llm.generate_engine_request import GenerateConvention, signature_of
from tests.engines.backends.support import configuration, spec

BASE = Path("/repository/model")


def parameters(**texts: str) -> str:
    return "".join(f'parameters {{ key: "{key}" value {{ string_value: "{text}" }} }}' for key, text in texts.items())


OPTIONS = [
    ("memory_gb", "1.5", 1.5),
    ("max_context", "4096", 4096),
    ("max_sequences", "8", 8),
    ("max_batch_tokens", "256", 256),
    ("max_waiting", "2", 2),
    ("num_blocks", "100", 100),
    ("block_size", "32", 32),
    ("threads", "2", 2),
    ("prefix_cache", "False", False),
    ("deterministic", "yes", True),
    ("check_logits", "0", False),
    ("run_ahead", "true", True),
    ("device", "CPU", "cpu"),
    ("ops", "reference", "reference"),
    ("dtype", "float16", "float16"),
    ("quantize", "int4", "int4"),
    ("quantize", "none", None),
    ("quantize_group", "32", 32),
    ("speculation", "off", None),
    ("speculation", "ngram", Speculation("ngram")),
    ("speculation", "ngram, num_tokens=6, ngram_max=3", Speculation("ngram", num_tokens=6, ngram_max=3)),
    ("speculation", "draft=small,num_tokens=3", Speculation("draft", 3, BASE / "small")),
    ("adapters", "sql=/a/sql, chat=b", {"sql": Path("/a/sql"), "chat": BASE / "b"}),
    ("adapters", '{"a,b": "c=d"}', {"a,b": BASE / "c=d"}),
    ("kv_store", "redis://user:word@host:1/2", "redis://user:word@host:1/2"),
    ("kv_ttl", "36h", 36 * 3600.0),
    ("kv_codec", "INT8", "int8"),
    ("kv_secret_file", "secret", BASE / "secret"),
    ("kv_deadline", "250ms", 0.25),
    ("kv_fetch", "always", "always"),
    ("kv_events", "tcp://127.0.0.1:5557", "tcp://127.0.0.1:5557"),
    ("kv_events_replay", "ipc:///run/replay", "ipc:///run/replay"),
]


@pytest.mark.parametrize("name, text, value", OPTIONS)
def test_an_option_is_read_from_its_text(name: str, text: str, value: object) -> None:
    """Each option of the engine can be set in a configuration, as text."""
    assert getattr(read_options({name: text}, BASE), name) == value


def test_every_option_has_a_parameter() -> None:
    """There is no option that a configuration has no way to set."""
    error_text = {name for name, _, _ in OPTIONS}
    assert error_text == {each.name for each in fields(EngineOptions)}


WRONG = [
    ("memory_gb", "much", "the parameter MEMORY_GB is 'much', and has to be a positive number of gigabytes"),
    ("memory_gb", "nan", "the parameter MEMORY_GB is 'nan', and has to be a positive number of gigabytes"),
    ("max_context", "0", "the parameter MAX_CONTEXT is '0', and has to be a whole number from 1 on"),
    ("prefix_cache", "maybe", "the parameter PREFIX_CACHE is 'maybe', and has to be true or false"),
    ("device", "tpu", "the parameter DEVICE is 'tpu', and has to be one of auto, mps, cuda, cpu"),
    ("quantize", "int3", "the parameter QUANTIZE is 'int3', and has to be one of none, int8, int4"),
    ("adapters", "sql", "the parameter ADAPTERS is 'sql', and has to be NAME=DIR with commas between them, or a JSON"),
    ("adapters", "{", "the parameter ADAPTERS is '{', and has to be NAME=DIR with commas between them, or a JSON"),
    ("speculation", "draft", "the parameter SPECULATION is 'draft', and has to be off, ngram, or draft=DIR"),
    ("kv_ttl", "soon", "the parameter KV_TTL is 'soon', and has to be a time above 0, as 500ms, 90s, 15m, 24h or 7d"),
    ("kv_codec", "zip", "the parameter KV_CODEC is 'zip', and has to be one of raw, int8"),
    ("kv_store", "http://u:word@host", "the parameter KV_STORE has to be the URL of a Redis: a Redis URL begins with"),
    ("kv_events", "127.0.0.1:5557", "the parameter KV_EVENTS is '127.0.0.1:5557', and has to be tcp://ADDRESS:PORT"),
    ("kv_events", "tcp://host", "the parameter KV_EVENTS is 'tcp://host', and has to be tcp://ADDRESS:PORT"),
    ("kv_store", "env:NONE", "the parameter KV_STORE (env:NONE) has to be the URL of a Redis: a Redis URL begins"),
    ("speculation", "ngram,num_tokens=x", "the parameter SPECULATION is 'ngram,num_tokens=x', and has to be off"),
]


@pytest.mark.parametrize("name, text, error_text", WRONG)
def test_a_wrong_option_is_named(name: str, text: str, error_text: str) -> None:
    """An invalid value is refused with the parameter's name and its valid values."""
    with pytest.raises(EngineError) as failure:
        read_options({name: text}, BASE)
    assert failure.value.message.startswith(error_text)


def test_names_in_upper_case_count_and_backend_config_stands_behind(tmp_path: Path) -> None:
    """Parameter names are case-insensitive; --backend-config gives the values that the configuration leaves out."""
    config = configuration(parameters(MODEL="folder", MAX_SEQUENCES="3", dtype="float32"))
    folder, options = read_settings(spec(tmp_path, config, options={"max-sequences": "9", "max-waiting": "7"}))
    assert folder == tmp_path / "folder"
    assert (options.max_sequences, options.max_waiting, options.dtype) == (3, 7, "float32")


def test_the_version_directory_is_the_folder_where_none_is_named(tmp_path: Path) -> None:
    """Without the parameter MODEL the folder is the version directory."""
    assert read_settings(spec(tmp_path, configuration("")))[0] == tmp_path / "1"


@pytest.mark.parametrize("kind, device", [("KIND_CPU", "cpu"), ("KIND_GPU", "auto"), ("KIND_MODEL", "auto")])
def test_the_instance_group_chooses_the_device(tmp_path: Path, kind: str, device: str) -> None:
    """An instance on a CPU stays there; KIND_MODEL leaves it to the engine."""
    assert read_settings(spec(tmp_path, configuration(""), kind))[1].device == device


def test_completed_tensors_are_those_of_a_vllm_backend() -> None:
    """A configuration of two lines becomes a decoupled model in the form of Triton's vLLM backend."""
    config = configuration('name: "m" backend: "paged"')
    complete(config, Path("/repository/m"), {})
    assert config.model_transaction_policy.decoupled
    assert config.parameters["STREAM_INPUT"].string_value == "stream"
    assert all(tensor.optional for tensor in config.input)
    metadata = {
        "name": "m",
        "inputs": [{"name": name, "datatype": INPUTS[name][0]} for name in [each.name for each in config.input]],
        "outputs": [{"name": name, "datatype": OUTPUTS[name][0]} for name in [each.name for each in config.output]],
    }
    signature = signature_of(metadata)
    assert signature.kind is GenerateConvention.VLLM
    assert (signature.text_input, signature.text_output, signature.stream_input) == (
        "text_input",
        "text_output",
        "stream",
    )


def test_declared_tensors_stay() -> None:
    """What a configuration says of a tensor is kept; the others are added."""
    config = configuration('input { name: "text_input" data_type: TYPE_STRING dims: 1 }')
    complete(config, Path("/repository/m"), {})
    assert [each.name for each in config.input] == list(INPUTS)
    assert not config.input[0].optional


@pytest.mark.parametrize("text", ["max_batch_size: 4", "dynamic_batching { }", "sequence_batching { }"])
def test_batching_of_the_host_is_refused(text: str) -> None:
    """A configuration with the host's batching is refused: the error names MAX_SEQUENCES, as the engine batches
    itself."""
    with pytest.raises(EngineError, match="set the parameter MAX_SEQUENCES"):
        complete(configuration(text), Path("/repository/m"), {})
