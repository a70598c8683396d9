"""Reading config.pbtxt and the JSON of load requests."""

from pathlib import Path

import pytest

from engines.repository.config import ConfigError, line_of, read, read_json

ADDER = """
name: "adder"
max_batch_size: 8
input [ { name: "a", data_type: TYPE_INT32, dims: [ -1, 4 ] } ]
parameters: { key: "mode", value: { string_value: "fast" } }
"""

WRONG_TEXTS = [
    ('name: "x"\nmax_batch: 3', "2:1: ModelConfig has no field 'max_batch'; 'max_batch_size' is near it"),
    ('input [ { name: "x", dim: 3 } ]', "1:22: ModelInput has no field 'dim'; 'dims' is near it"),
    ("input [\n  { data_type: TYPE_FLOAT32 } ]", "2:16: 'TYPE_FLOAT32' is no DataType; 'TYPE_FP32' is near it"),
    ("\n\nbogus: 3", "3:1: ModelConfig has no field 'bogus'; there are: backend, batch_input, "),
    ('max_batch_size: "a"', '1:17: Couldn\'t parse integer: "a"'),
    ('name: "a"\nname: "b"', 'should not have multiple "name" fields.'),
    ("dynamic_batching { }\nsequence_batching { }", "another member of oneof"),
    ('input [ { name: "x", data_type: 99 } ]', "config.pbtxt: 99 is no DataType"),
    ('model_warmup [ { inputs { key: "a" value { data_type: 99 } } } ]', "config.pbtxt: 99 is no DataType"),
    ('input [ { name: "x" ]', "1:21: Expected identifier or number, got ]."),
]


def test_a_configuration_is_protobuf_text() -> None:
    """The message has the contents of config.pbtxt."""
    config = read(ADDER)
    assert (config.name, config.max_batch_size, list(config.input[0].dims)) == ("adder", 8, [-1, 4])
    assert config.parameters["mode"].string_value == "fast"


@pytest.mark.parametrize("text, error_text", WRONG_TEXTS)
def test_errors_of_a_file_have_their_place(text: str, error_text: str, tmp_path: Path) -> None:
    """The error names the file, the line and the column, what is wrong there and what would be right."""
    path = tmp_path / "config.pbtxt"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        read(path)
    assert caught.value.message.startswith(f"{path}:")
    assert error_text in caught.value.message


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    """The error names the file and the reason."""
    with pytest.raises(ConfigError, match=r"nothing.pbtxt: No such file or directory"):
        read(tmp_path / "nothing.pbtxt")
    (tmp_path / "latin.pbtxt").write_bytes(b'name: "\xff"')
    with pytest.raises(ConfigError, match=r"latin.pbtxt: it is no UTF-8 text"):
        read(tmp_path / "latin.pbtxt")


@pytest.mark.parametrize(
    "text",
    [
        '{"name": "x", "input": [{"name": "a", "data_type": "TYPE_FP32", "dims": [3]}]}',
        '{"name": "x", "input": [{"name": "a", "dataType": "type_fp32", "dims": ["3"]}]}',
    ],
)
def test_json_is_read_in_each_of_its_spellings(text: str) -> None:
    """JSON may have field names in both forms, enum values in any case, and 64-bit numbers as numbers or texts."""
    assert read_json(text) == read('name: "x" input [ { name: "a", data_type: TYPE_FP32, dims: [ 3 ] } ]')


def test_only_enum_values_change_their_case() -> None:
    """The texts of maps and parameters stay as they are."""
    made = read_json('{"parameters": {"kind_gpu": {"string_value": "type_fp32"}}, "metric_tags": {"a": "kind_cpu"}}')
    assert made.parameters["kind_gpu"].string_value == "type_fp32"
    assert made.metric_tags["a"] == "kind_cpu"


@pytest.mark.parametrize(
    "text, error_text",
    [
        ("{", "Expecting property name"),
        ("", "Expecting value"),
        ("[]", "it is no JSON object"),
        ('{"bogus": 1}', "ModelConfig has no field 'bogus'"),
        ('{"input": 3}', "repeated field input must be in []"),
        ('{"input": [{"data_type": "TYPE_FP33"}]}', "Invalid enum value TYPE_FP33"),
        ('{"max_batch_size": "x"}', "max_batch_size"),
        ('{"instance_group": [{"kind": 99}]}', "99 is no Kind"),
        ("[" * 100_000, "recursion"),
    ],
)
def test_json_that_is_no_configuration_is_refused(text: str, error_text: str) -> None:
    """The error begins with Triton's text, followed by the reason."""
    with pytest.raises(ConfigError, match=r"^Invalid config override: ") as caught:
        read_json(text)
    assert error_text in caught.value.message


@pytest.mark.parametrize(
    "words, line",
    [
        (("max_batch_size",), 2),
        (("input", "b"), 5),
        (("input", "b", "dims"), 6),
        (("output", "nothing"), 8),
        (("nothing",), None),
        ((), None),
    ],
)
def test_the_line_of_what_is_wrong(words: tuple[str, ...], line: int | None) -> None:
    """Each word is searched for after the previous one; comments are skipped."""
    text = """# max_batch_size
max_batch_size: 3
input [
  { name: "a", dims: [ 1 ] },
  { name: "b",
    dims: [ 0 ] }
]
output [ ]
"""
    assert line_of(text, words) == line
