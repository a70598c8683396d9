"""`pointsman llm` before and while a model loads: errors, the repository that it writes, and its output."""

import io
import logging
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner

from engines.backends.paged.load_progress import LoadProgress, find_progress
from engines.backends.paged.settings import read_settings
from engines.cli.app import app
from engines.cli.llm_command import Display, Serving, serve_folder, write_repository
from engines.paged.base.options import EngineOptions, Speculation
from tests.engines.backends.support import configuration, spec

DEFAULTS: dict[str, Any] = {
    "model": Path("/models/tiny"),
    "name": "",
    "options": {},
    "adapters": {},
    "host": "127.0.0.1",
    "ports": (0, 0, 0),
    "drain_delay_seconds": 0.0,
    "exit_timeout_seconds": 1.0,
    "ready_file": None,
    "logs_info": False,
    "log_file": "",
}


def serving(**changed: Any) -> Serving:
    return Serving(**{**DEFAULTS, **changed})


def written(directory: Path, request: Serving) -> tuple[Path, EngineOptions]:
    """The options that the backend reads from the written repository."""
    write_repository(directory, "tiny", request)
    entry = directory / "tiny"
    config = configuration((entry / "config.pbtxt").read_text())
    assert config.backend == "paged"
    assert (entry / "1").is_dir()
    return read_settings(spec(entry, config, "KIND_MODEL"))


def test_the_repository_names_the_folder(tmp_path: Path) -> None:
    """The repository has one model, whose configuration names the folder; other options have the engine's defaults."""
    assert written(tmp_path, serving()) == (Path("/models/tiny"), EngineOptions())


def test_the_repository_has_the_options(tmp_path: Path) -> None:
    """Command-line options reach the engine."""
    options = {"memory_gb": "2.5", "speculation": "ngram,num_tokens=3", "prefix_cache": "False", "quantize": "none"}
    _, read = written(tmp_path, serving(options=options, adapters={"a, b": Path("/adapters/one")}))
    assert read == EngineOptions(
        memory_gb=2.5,
        speculation=Speculation("ngram", num_tokens=3),
        prefix_cache=False,
        adapters={"a, b": Path("/adapters/one")},
    )


def test_the_command_lines_defaults_are_the_engines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A bare `pointsman llm --model DIR` sets nothing that the engine would not."""
    requests: list[Serving] = []
    monkeypatch.setattr("engines.cli.llm_command.serve_folder", lambda each: requests.append(each) or 0)
    result = CliRunner().invoke(app, ["llm", "--model", "/models/tiny"])
    assert result.exit_code == 0, result.output
    assert written(tmp_path, requests[0]) == (Path("/models/tiny"), EngineOptions())


REFUSED = [
    (["llm"], "name the folder of a model"),
    (["llm", "--model", "/", "--adapter", "sql"], "it is NAME=DIR, not 'sql'"),
    (["llm", "--model", "/", "--quantize", "int3"], "'int3' is not one of"),
    (["llm", "--model", "/", "--memory-gb", "0"], "0.001"),
]


@pytest.mark.parametrize("arguments, message", REFUSED)
def test_options_that_mean_nothing_are_refused(arguments: list[str], message: str) -> None:
    """The error describes the option's values, and the exit code is 2."""
    result = CliRunner().invoke(app, arguments, env={"COLUMNS": "200"})
    assert result.exit_code == 2
    assert message in " ".join(result.output.split())


@pytest.mark.parametrize(
    "changed, message",
    [
        ({"model": Path("nobody/nothing-7B")}, "hf download nobody/nothing-7B --local-dir nothing-7B"),
        ({"model": Path("/no/such/folder/here")}, "--model /no/such/folder/here: there is no such folder\n"),
        ({"model": Path(__file__)}, "is a file: name the folder that it is in (config.json, *.safetensors, tokenizer"),
        ({"model": Path(__file__).parent}, "is no Hugging Face folder: it has no config.json. Beside it belong"),
        ({"name": "a/b"}, "--name 'a/b': a model's name has no slashes, and begins with no dot"),
        ({"log_file": "/no/such/directory/log"}, "cannot log to /no/such/directory/log: No such file or directory"),
    ],
)
def test_an_unservable_model_fails_before_it_is_loaded(
    changed: dict[str, Any], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The error names the option's problem and the remedy."""
    assert serve_folder(serving(**changed)) == 1
    error = capsys.readouterr().err
    assert error.startswith("pointsman llm: ")
    assert message in error


def test_missing_libraries_are_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """The error names the extra that installs the missing libraries."""
    monkeypatch.setattr("engines.cli.llm_command.find_spec", lambda name: None if name[0] == "t" else object())
    assert serve_folder(serving()) == 1
    assert capsys.readouterr().err == (
        'pointsman llm: torch, tokenizers: not installed here; pip install "pointsman[llm]"\n'
    )


def test_a_missing_adapter_is_named(tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A missing adapter is reported before the model is loaded."""
    assert serve_folder(serving(model=tiny, adapters={"sql": tmp_path / "nope"})) == 1
    assert f"--adapter sql={tmp_path}/nope: there is no such folder" in capsys.readouterr().err


def test_an_unsupported_model_fails_at_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An unsupported config.json is refused before anything is loaded."""
    (tmp_path / "config.json").write_text('{"architectures": ["BertModel"], "model_type": "bert"}')
    assert serve_folder(serving(model=tmp_path)) == 1
    error = capsys.readouterr().err
    assert "BertModel" in error
    assert "LlamaForCausalLM" in error


def test_progress_is_read_as_it_is_written() -> None:
    """Progress is parsed from the host's log, where the instance's name precedes it."""
    progress = LoadProgress("weights of model-00001.safetensors", 512, 1024)
    assert find_progress(f"tiny_0_0: {progress} (progress.py:70)") == progress
    assert find_progress("tiny_0_0: loading '/models/tiny'") is None


def shown(is_terminal: bool) -> str:
    """The output of the command once a model has loaded."""
    out = io.StringIO()
    display = Display(Console(file=out, force_terminal=is_terminal, width=200, highlight=False), "tiny")
    logger = logging.getLogger("engines.models.test")
    logger.setLevel(logging.INFO)
    with display.watching(logger):
        for done in range(0, 91, 10):
            logger.info("%s: %s", "tiny_0_0", LoadProgress("weights", done, 100))
        show_ready(display)
    logger.info("%s", LoadProgress("unseen", 1, 2))
    return out.getvalue()


def show_ready(display: Display) -> None:
    placement = {"device": "cpu", "ops": "reference", "dtype": "float32", "max_context": 2048, "memory_text": "1 GiB"}
    placement |= {"chats": True, "adapters": ["sql"], "quantization": None}
    display.show_ready(placement, "127.0.0.1", 1, 2, 3)


def test_what_is_shown_in_a_pipe() -> None:
    """In a pipe the command prints lines: each stage once, the addresses, and a command to try."""
    assert shown(is_terminal=False).splitlines() == [
        "loading tiny: weights",
        "tiny is served on cpu (reference, float32), contexts of up to 2,048 tokens",
        "  memory    1 GiB",
        "  adapters  sql",
        "  OpenAI    http://127.0.0.1:1/v1",
        "  V2        http://127.0.0.1:1/v2, gRPC 127.0.0.1:2",
        "  metrics   http://127.0.0.1:3/metrics",
        "try:",
        "  curl -N http://127.0.0.1:1/v1/chat/completions -H 'content-type: application/json' \\",
        '    -d \'{"model": "tiny", "messages": [{"role": "user", "content": "Hello!"}], "max_tokens": 64, '
        '"stream": true}\'',
    ]


def test_what_is_shown_on_a_terminal() -> None:
    """On a terminal the command draws a bar for each stage from the start; all are full once it serves."""
    last = shown(is_terminal=True).split("is served on")[0].splitlines()[-3:-1]
    assert [line.count("100%") for line in last] == [1, 1]
    assert "starting tiny" in last[0]
    assert "weights" in last[1]
