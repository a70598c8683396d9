"""scripts/export_trtllm.py: repositories of language models, which a real Triton loads and serves; the engine of
TensorRT-LLM itself needs a GPU, so a python model that answers with the prompt's tokens takes its place."""

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2

from gateway.demo.triton import TritonProcess, why_unavailable
from tests.support import plain_http
from tests.support.child import REPOSITORY
from tests.support.host import HostProcess
from tests.support.servers import GatewayProcess

pytestmark = pytest.mark.timeout(180)

CHECKPOINT = REPOSITORY / "engines" / "samples" / "models" / "storyteller" / "1"
PROMPT = "Once upon a time there was a fox — and a hare 🦊."

# In the place of the engine: streams the prompt's tokens one by one, or answers with all of them; `request_output_len`
# bounds them; the first token of a stop word ends them, as an engine ends before it.
STAND_IN = """
import numpy as np
import triton_python_backend_utils as pb_utils


def value(request, name, default=None):
    tensor = pb_utils.get_input_tensor_by_name(request, name)
    return default if tensor is None else tensor.as_numpy()


class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            ids = value(request, "input_ids")[0][: int(value(request, "input_lengths").flat[0])]
            ids = ids[: int(value(request, "request_output_len").flat[0])]
            words, ends = value(request, "stop_words_list")[0]
            for begin in [0, *[end for end in ends if end > 0]][: sum(end > 0 for end in ends)]:
                found = np.flatnonzero(ids == words[begin])
                ids = ids[: found[0]] if len(found) else ids
            streams = bool(value(request, "streaming", np.array([False])).flat[0])
            for piece in [ids[i : i + 1] for i in range(len(ids))] if streams else [ids]:
                outputs = [
                    pb_utils.Tensor("output_ids", piece.astype(np.int32).reshape(1, 1, -1)),
                    pb_utils.Tensor("sequence_length", np.array([[len(piece)]], np.int32)),
                    pb_utils.Tensor("cum_log_probs", np.zeros((1, 1), np.float32)),
                ]
                sender.send(pb_utils.InferenceResponse(outputs))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""


def export(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(REPOSITORY / "scripts" / "export_trtllm.py"), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def configs(models: Path) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for path in models.glob("*/config.pbtxt"):
        found[path.parent.name] = text_format.Parse(path.read_text(), model_config_pb2.ModelConfig())
        assert found[path.parent.name].name == path.parent.name
    return found


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The repository of an engine, with the stand-in for the engine."""
    output = tmp_path_factory.mktemp("export") / "storyteller"
    done = export(
        CHECKPOINT,
        output,
        "--backend",
        "engine",
        "--name",
        "storyteller",
        "--bls-instances",
        "1",
        "--tokenizer-instances",
        "1",
        "--max-batch-size",
        "4",
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith((output / "commands.sh").read_text())
    return output


def test_the_ensemble_fits_its_models(exported: Path) -> None:
    """Each map of the ensemble names a tensor of its step, and datatypes agree from end to end."""
    models = configs(exported / "models")
    ensemble = models["ensemble"]
    types = {tensor.name: tensor.data_type for tensor in ensemble.input}
    for step in ensemble.ensemble_scheduling.step:
        model = models[step.model_name]
        inputs = {tensor.name: tensor for tensor in model.input}
        outputs = {tensor.name: tensor for tensor in model.output}
        assert set(step.input_map) <= set(inputs)
        assert {name for name, tensor in inputs.items() if not tensor.optional} <= set(step.input_map)
        assert [name for name, between in step.input_map.items() if types[between] != inputs[name].data_type] == []
        types |= {between: outputs[name].data_type for name, between in step.output_map.items()}
    assert {tensor.name: tensor.data_type for tensor in ensemble.output}.items() <= types.items()
    engine = models["tensorrt_llm"]
    assert engine.backend == "tensorrtllm"
    assert engine.parameters["gpt_model_path"].string_value == "/export/engine"
    assert engine.model_transaction_policy.decoupled


def test_the_commands_are_in_order(exported: Path) -> None:
    """From weights to engine to Triton, with the sizes that config.pbtxt has."""
    commands = re.findall(r"^[^#].*", (exported / "commands.sh").read_text(), re.MULTILINE)
    assert [command.split()[0] for command in commands] == ["docker", "git", "python3", "trtllm-build", "tritonserver"]
    assert "examples/models/core/llama/convert_checkpoint.py" in commands[2]
    assert "--max_batch_size 4 " in commands[3] and "--output_dir /export/engine " in commands[3]
    for command in commands:
        subprocess.run(["bash", "-n", "-c", command], check=True)


@pytest.fixture(scope="module")
def served(exported: Path) -> Iterator[TritonProcess]:
    """A real Triton with the repository, whose engine is the stand-in."""
    if (reason := why_unavailable()) is not None:
        pytest.skip(reason)
    _put_the_stand_in(exported)
    with TritonProcess.start(exported / "models").wait_ready() as triton:
        yield triton


def _put_the_stand_in(exported: Path) -> None:
    folder = exported / "models" / "tensorrt_llm"
    text = (folder / "config.pbtxt").read_text()
    (folder / "config.pbtxt").write_text(text.replace('backend: "tensorrtllm"', 'backend: "python"'))
    (folder / "1" / "model.py").write_text(STAND_IN)


def generate(url: str, model: str, **more: Any) -> Any:
    body = {"text_input": PROMPT, "max_tokens": 100, "stream": False, **more}
    return plain_http.post(f"{url}/v2/models/{model}/generate", json=body)


@pytest.mark.triton
@pytest.mark.parametrize("model", ["ensemble", "tensorrt_llm_bls"])
def test_a_prompt_comes_back(served: TritonProcess, model: str) -> None:
    """The prompt becomes tokens, and the tokens text, without and with a limit and a stop word."""
    assert generate(served.http_url, model).json()["text_output"].strip() == PROMPT
    short = generate(served.http_url, model, max_tokens=3).json()["text_output"]
    assert short and PROMPT.startswith(short.strip()) and len(short) < len(PROMPT)
    stopped = generate(served.http_url, model, stop_words=[" fox"]).json()["text_output"]
    assert stopped.strip() == "Once upon a time there was a"


@pytest.mark.triton
def test_a_stream_joins_to_the_text(served: TritonProcess) -> None:
    """The pieces of the BLS model have the blanks between words, and characters of several tokens whole."""
    url = f"{served.http_url}/v2/models/tensorrt_llm_bls/generate_stream"
    body = {"text_input": PROMPT, "max_tokens": 100, "stream": True}
    events = re.findall(r"^data: (.*)$", plain_http.post(url, json=body).text, re.MULTILINE)
    pieces = [json.loads(event)["text_output"] for event in events]
    assert len(pieces) > 10
    assert "".join(pieces).strip() == PROMPT


@pytest.mark.triton
def test_openai_clients_reach_it_by_the_rules(
    served: TritonProcess, exported: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A gateway with the rules beside the repository answers a chat, whose prompt the checkpoint's template makes."""
    monkeypatch.setenv("TRITON_URL", served.http_url)
    monkeypatch.setenv("TRITON_GRPC", served.grpc_url)
    rules = exported / "rules.yaml"
    gateway = GatewayProcess.start(
        rules.read_text().replace(": tokenizer_config.json", f": {exported}/tokenizer_config.json"), tmp_path
    )
    with openai.OpenAI(base_url=f"{gateway.wait_ready().http_url}/v1", api_key="none") as client:
        message: Any = {"role": "user", "content": "Tell me of a fox."}
        chunks = client.chat.completions.create(model="storyteller", messages=[message], max_tokens=90, stream=True)
        text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    gateway.stop()
    assert "Tell me of a fox." in text


def test_the_engine_host_serves_it_too(exported: Path, tmp_path: Path) -> None:
    """The python models are Triton's: the engine host runs them as they are."""
    _put_the_stand_in(exported)
    host = HostProcess.start([exported / "models"], tmp_path)
    assert generate(host.wait_ready().http_url, "ensemble").json()["text_output"].strip() == PROMPT
    host.stop()


def test_the_llm_api_and_vllm(tmp_path: Path) -> None:
    """Both have one model; parallelism and lengths are in the file that their backend reads."""
    sizes = ["--tp", "2", "--max-seq-len", "2048", "--prefix", "story-"]
    assert export(CHECKPOINT, tmp_path / "a", *sizes).returncode == 0
    models = configs(tmp_path / "a" / "models")
    assert list(models) == ["story-tensorrt_llm"] and models["story-tensorrt_llm"].backend == "python"
    arguments = (tmp_path / "a" / "models" / "story-tensorrt_llm" / "1" / "model.yaml").read_text()
    assert "tensor_parallel_size: 2\n" in arguments and "max_seq_len: 2048\n" in arguments
    assert "all_models/llmapi/tensorrt_llm/1" in (tmp_path / "a" / "commands.sh").read_text()

    assert export(CHECKPOINT, tmp_path / "b", "--backend", "vllm", *sizes).returncode == 0
    assert configs(tmp_path / "b" / "models")["story-vllm_model"].backend == "vllm"
    model = json.loads((tmp_path / "b" / "models" / "story-vllm_model" / "1" / "model.json").read_text())
    assert model["tensor_parallel_size"] == 2 and model["max_model_len"] == 2048
    assert "-vllm-python-py3" in (tmp_path / "b" / "commands.sh").read_text()


def test_nemo(tmp_path: Path) -> None:
    """A NeMo checkpoint is converted first; its tokenizer comes from a Hugging Face folder."""
    (tmp_path / "nemo2" / "context").mkdir(parents=True)
    done = export(tmp_path / "nemo2", tmp_path / "out", "--tokenizer", CHECKPOINT, "--backend", "engine")
    assert done.returncode == 0, done.stderr
    assert done.stdout.index("export_ckpt") < done.stdout.index("docker run") < done.stdout.index("trtllm-build")
    assert f"-v {tmp_path}/out/hf:/checkpoint:ro" in done.stdout
    (tmp_path / "one.nemo").touch()
    done = export(tmp_path / "one.nemo", tmp_path / "one", "--tokenizer", CHECKPOINT)
    assert f"--hf_input_path {CHECKPOINT} " in done.stdout


def test_what_cannot_be_exported(tmp_path: Path) -> None:
    """The error says what is missing and what to do."""
    (tmp_path / "empty").mkdir()
    (tmp_path / "strange").mkdir()
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (tmp_path / "strange" / name).write_text((CHECKPOINT / name).read_text())
    (tmp_path / "strange" / "config.json").write_text('{"model_type": "strange", "eos_token_id": 1}')
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    for arguments, error in (
        ([tmp_path / "none", tmp_path / "out"], "none does not exist"),
        ([tmp_path / "empty", tmp_path / "out"], "neither tokenizer.json nor tokenizer.model"),
        ([tmp_path / "strange", tmp_path / "out", "--backend", "engine"], "Use --backend llmapi"),
        ([CHECKPOINT, tmp_path / "full"], "--force"),
    ):
        done = export(*arguments)
        assert (done.returncode, done.stdout) == (2, "")
        assert error in done.stderr and "Traceback" not in done.stderr
