"""Settings files: their values, their places, and what is wrong in them."""

import pytest

from gateway.options.settings_file import read_settings

OPTIONS = ("http-port", "rules", "access-log", "drain-delay", "redis")


def texts(text: str, file: str = "s.yaml") -> dict[str, str | list[str]]:
    values, problems = read_settings(text, file, OPTIONS, {"PASSWORD": "pw"})
    assert problems == []
    return {name: value.text for name, value in values.items()}


YAML = """\
http_port: 8000
rules: [a.yaml, rules]
access-log: true
drain-delay: 10s
redis: redis://u:${PASSWORD}@db
"""
TOML = """\
http_port = 8000
rules = ["a.yaml", "rules"]
access-log = true
drain-delay = "10s"
redis = "redis://u:pw@db"
"""


@pytest.mark.parametrize("text, file", [(YAML, "s.yaml"), (TOML, "s.toml")])
def test_values_are_those_of_options(text: str, file: str) -> None:
    """YAML and TOML name options with dashes or underscores; values are read as texts, with lists where there are."""
    assert texts(text, file) == {
        "http-port": "8000",
        "rules": ["a.yaml", "rules"],
        "access-log": "true",
        "drain-delay": "10s",
        "redis": "redis://u:pw@db",
    }


@pytest.mark.parametrize("file", ["s.yaml", "s.toml"])
def test_an_empty_file_has_no_values(file: str) -> None:
    """An empty file, or one of comments, sets nothing."""
    assert texts("", file) == texts("# nothing yet\n", file) == {}


@pytest.mark.parametrize(
    "text, file, problem",
    [
        ("a: 1\nhttp_prt: 3", "s.yaml", "s.yaml:2:1: error: unknown option 'http_prt': did you mean 'http-port'?"),
        ("\nhttp_prt = 3", "s.toml", "s.toml:2:1: error: unknown option 'http_prt': did you mean 'http-port'?"),
        ("http-port: 1\nhttp_port: 2", "s.yaml", "s.yaml:2:1: error: 'http_port' is 'http-port', which stands above"),
        ("rules: {a: b}", "s.yaml", "s.yaml:1:8: error: 'rules' is one value, or a list of values: found a map"),
        ("\n[rules]\na = 1", "s.toml", "s.toml:2:1: error: 'rules' is one value, or a list of values: found a map"),
        ("rules:", "s.yaml", "s.yaml:1:7: error: 'rules' is one value, or a list of values: found nothing"),
        ("- a", "s.yaml", "s.yaml:1:1: error: expected a map of options, found a list"),
        ("rules: [a", "s.yaml", "not YAML"),
        ("rules = [a", "s.toml", "s.toml:1:10: error: not TOML: Invalid value"),
        ("redis: ${NOWHERE}", "s.yaml", "environment variable NOWHERE is not set"),
    ],
)
def test_what_is_wrong_has_its_place(text: str, file: str, problem: str) -> None:
    """Unknown names, second values, values of the wrong kind and broken files are reported with file and line."""
    _, problems = read_settings(text, file, OPTIONS, {})
    assert problem in "\n".join(map(str, problems))
