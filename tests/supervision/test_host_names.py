"""What rules of the admin API may name of the gateway's host: no more than operators have named in files."""

import asyncio
from collections.abc import Mapping
from pathlib import Path

import pytest

from gateway.config.rules import load_rules
from gateway.rule_versions.version import RulesRefused
from gateway.supervision.rulebook import Rulebook


def rules(key: str = "k", template: str = "own.jinja", tls: str = "") -> str:
    """Rules with an engine that names these."""
    url = "https://127.0.0.1:1" if tls else "http://127.0.0.1:1"
    return f"""version: 1
engines:
  it:
    protocol: openai
    dialects: [completions]
    endpoints: ["{url}"]
    headers: {{x-key: "{key}"}}
    chat_template: {template}
    {tls and f"tls: {tls}"}
routes: [{{name: all, engine: it}}]
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of rules with a template, and a secret elsewhere."""
    monkeypatch.setenv("OURS", "one")
    monkeypatch.setenv("SECRET", "two")
    monkeypatch.setenv("LISTED", "three")
    (tmp_path / "secret").write_text("the secret")
    (tmp_path / "rules").mkdir()
    (tmp_path / "rules" / "own.jinja").write_text("{{ messages }}")
    (tmp_path / "rules" / "link.jinja").symlink_to(tmp_path / "secret")
    return tmp_path / "rules"


def opened(folder: Path, text: str, state: Path | None = None) -> Rulebook:
    (folder / "rules.yaml").write_text(text)
    book = Rulebook([folder], state, ["LISTED"])
    book.open(load_rules([folder]))
    return book


def activated(book: Rulebook, text: str) -> Mapping[str, str]:
    """The headers of the engine by these rules of the API."""
    asyncio.run(book.activate({"rules.yaml": text}, "anna"))
    return book.rules.engines["it"].headers


@pytest.mark.parametrize("key", ["${SECRET}", "${SECRET:-x}", "${PATH}", "${NONE:-x}"])
def test_rules_of_the_api_read_no_other_variable(folder: Path, key: str) -> None:
    """A variable that no rule file names is refused, with a default, too, and where it is not set."""
    book = opened(folder, rules(key="${OURS}"))
    with pytest.raises(RulesRefused, match=r"may not read the environment variable .* --rules-api-env"):
        activated(book, rules(key=key))
    assert asyncio.run(book.judge({"rules.yaml": rules(key=key)})).rules is None  # validate and explain, too


def test_rules_of_the_api_read_what_the_files_read_and_what_is_listed(folder: Path) -> None:
    """Variables of the files on disk, and those of --rules-api-env; a comment names none."""
    book = opened(folder, "# ${SECRET}\n" + rules(key="${OURS}"))
    assert activated(book, rules(key="${OURS}-${LISTED}")) == {"x-key": "one-three"}
    with pytest.raises(RulesRefused):
        activated(book, rules(key="${SECRET}"))


@pytest.mark.parametrize("template", ["../secret", "/etc/hostname", "link.jinja", "../none", "own.jinja/../../secret"])
def test_rules_of_the_api_read_no_file_elsewhere(folder: Path, template: str) -> None:
    """A template outside of the rule folder is refused, by a link, too, whether it is there or not."""
    book = opened(folder, rules())
    with pytest.raises(RulesRefused, match=r"is outside of .*: rules of the admin API may name files of that folder"):
        activated(book, rules(template=template))


def test_rules_of_the_api_may_name_the_files_of_the_rule_files(folder: Path, tmp_path: Path) -> None:
    """Operators may name files anywhere, and rules of the API those."""
    elsewhere = tmp_path / "model.jinja"
    elsewhere.write_text("{{ messages }}")
    book = opened(folder, rules(template=str(elsewhere)))
    assert activated(book, rules(key="new", template=str(elsewhere))) == {"x-key": "new"}
    assert activated(book, rules(key="newer")) == {"x-key": "newer"}


def test_rules_of_the_api_name_no_key_of_the_host(folder: Path, tmp_path: Path) -> None:
    """TLS files are held to the same rule: a client key elsewhere is not presented to an engine."""
    book = opened(folder, rules())
    with pytest.raises(RulesRefused, match="is outside of"):
        activated(book, rules(tls=f"{{ca: {tmp_path / 'secret'}}}"))


def test_what_was_on_disk_may_be_put_in_force_again(folder: Path, tmp_path: Path) -> None:
    """A rollback to an earlier state of the files may read what that read; a restart keeps it."""
    state = tmp_path / "state"
    opened(folder, rules(key="${SECRET}"), state)
    book = opened(folder, rules(), state)
    asyncio.run(book.roll_back("anna"))
    assert book.rules.engines["it"].headers == {"x-key": "two"}
    again = Rulebook([folder], state)
    again.open(load_rules([folder]))
    assert again.rules.engines["it"].headers == {"x-key": "two"}
    with pytest.raises(RulesRefused):
        activated(again, rules(key="${SECRET}!"))


def test_rules_of_the_api_name_no_credential_of_the_host(folder: Path, tmp_path: Path) -> None:
    """A credential that no rule file on disk names goes to no engine: not from a file, nor from a variable."""
    (tmp_path / "secret").chmod(0o600)
    (tmp_path / "other").write_text("other")
    (tmp_path / "other").chmod(0o600)
    book = opened(folder, rules().replace('"k"', f"{{file: {tmp_path / 'secret'}}}"))
    with pytest.raises(RulesRefused, match="is outside of"):
        activated(book, rules().replace('"k"', f"{{file: {tmp_path / 'other'}}}"))
    with pytest.raises(RulesRefused, match="may not read the environment variable SECRET"):
        activated(book, rules().replace('"k"', "{env: SECRET}"))
    assert activated(book, rules().replace('"k"', "{env: LISTED}")) == {"x-key": "three"}
    assert activated(book, rules().replace('"k"', f"{{file: {tmp_path}/secret}}")) == {"x-key": "the secret"}
