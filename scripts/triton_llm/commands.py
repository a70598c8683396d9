"""The commands from a checkpoint to a Triton that serves it, each with the reason for it."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from scripts.triton_llm.checkpoint import Checkpoint

CONTAINER = "nvcr.io/nvidia/tritonserver:{release}-{kind}-python-py3"
TENSORRT_LLM = "https://github.com/NVIDIA/TensorRT-LLM.git"
_VERSION = "import tensorrt_llm; print(tensorrt_llm.__version__)"
# Where the folders are mounted in the container.
EXPORT, CHECKPOINT, SOURCE = "/export", "/checkpoint", "/export/TensorRT-LLM"


@dataclass(frozen=True, slots=True)
class Step:
    why: str
    command: str
    is_in_container: bool = True


@dataclass(frozen=True, slots=True)
class Plan:
    """What is built. `dtype` is auto, float16 or bfloat16; lengths are in tokens."""

    checkpoint: Checkpoint
    tokenizer: Path
    output: Path
    backend: str
    release: str
    dtype: str
    tensor_parallel: int
    pipeline_parallel: int
    max_batch_size: int
    max_input_len: int
    max_seq_len: int
    max_beam_width: int

    @property
    def gpus(self) -> int:
        return self.tensor_parallel * self.pipeline_parallel


def steps(plan: Plan) -> Iterator[Step]:
    """All commands, in their order. Raises: CheckpointError where the model's family has no converter."""
    yield from _nemo(plan)
    yield _container(plan)
    if plan.backend != "vllm":
        yield Step(
            "TensorRT-LLM's scripts and its python model, of the container's version",
            f"""git clone --depth 1 --branch "v$(python3 -c '{_VERSION}' | tail -1)" {TENSORRT_LLM} {SOURCE}""",
        )
    if plan.backend == "llmapi":
        folder = f"{SOURCE}/triton_backend/all_models/llmapi/tensorrt_llm/1"
        yield Step("the model's code beside model.yaml", f"cp {folder}/*.py {EXPORT}/models/*/1/")
    if plan.backend == "engine":
        yield from _engine(plan)
    yield _serve(plan)


def _nemo(plan: Plan) -> Iterator[Step]:
    if not plan.checkpoint.is_nemo:
        return
    path = shlex.quote(str(plan.checkpoint.path.resolve()))
    if plan.checkpoint.path.suffix == ".nemo":
        yield Step(
            "a NeMo 1 archive as a Hugging Face folder, in the container nvcr.io/nvidia/nemo; "
            "families other than Llama have their converters in the same folder",
            "python /opt/NeMo/scripts/checkpoint_converters/convert_llama_nemo_to_hf.py "
            f"--input_name_or_path {path} --output_path {_output(plan)}/hf/pytorch_model.bin "
            f"--hf_input_path {shlex.quote(str(plan.tokenizer.resolve()))} --hf_output_path {_output(plan)}/hf",
            is_in_container=False,
        )
    else:
        code = (
            "from pathlib import Path; from nemo.collections import llm; "
            f"llm.export_ckpt(path=Path('{plan.checkpoint.path.resolve()}'), target='hf', "
            f"output_path=Path('{plan.output.resolve()}/hf'))"
        )
        yield Step(
            "the NeMo checkpoint as a Hugging Face folder, in the container nvcr.io/nvidia/nemo",
            f"python -c {shlex.quote(code)}",
            is_in_container=False,
        )


def _output(plan: Plan) -> str:
    return shlex.quote(str(plan.output.resolve()))


def _container(plan: Plan) -> Step:
    source = f"{plan.output.resolve()}/hf" if plan.checkpoint.is_nemo else str(plan.checkpoint.path.resolve())
    image = CONTAINER.format(release=plan.release, kind="vllm" if plan.backend == "vllm" else "trtllm")
    return Step(
        "a shell with Triton and the backend; the further commands are for it",
        "docker run --rm -it --gpus all --shm-size=2g --ulimit memlock=-1 --ulimit stack=67108864 "
        f"-p 8000-8002:8000-8002 -v {_output(plan)}:{EXPORT} -v {shlex.quote(source)}:{CHECKPOINT}:ro {image} bash",
        is_in_container=False,
    )


def _engine(plan: Plan) -> Iterator[Step]:
    family = "core/llama" if plan.checkpoint.is_nemo else plan.checkpoint.converter
    parallel = f"--tp_size {plan.tensor_parallel} --pp_size {plan.pipeline_parallel}"
    yield Step(
        "the weights in TensorRT-LLM's form",
        f"python3 {SOURCE}/examples/models/{family}/convert_checkpoint.py --model_dir {CHECKPOINT} "
        f"--output_dir {EXPORT}/weights --dtype {plan.dtype} {parallel}",
    )
    yield Step(
        "the engine for this kind of GPU",
        f"trtllm-build --checkpoint_dir {EXPORT}/weights --output_dir {EXPORT}/engine --gemm_plugin auto "
        f"--kv_cache_type paged --use_paged_context_fmha enable --max_batch_size {plan.max_batch_size} "
        f"--max_input_len {plan.max_input_len} --max_seq_len {plan.max_seq_len} --max_beam_width {plan.max_beam_width} "
        f"--workers {plan.gpus}",
    )


def _serve(plan: Plan) -> Step:
    if plan.backend == "vllm" or (plan.backend == "engine" and plan.gpus == 1):
        return Step("Triton", f"tritonserver --model-repository={EXPORT}/models")
    script = f"{SOURCE}/triton_backend/scripts/launch_triton_server.py"
    # The LLM API starts its own workers; engines have one rank of MPI for each GPU.
    world = f" --world_size={plan.gpus}" if plan.backend == "engine" else ""
    return Step("Triton", f"python3 {script} --model_repo={EXPORT}/models{world}")
