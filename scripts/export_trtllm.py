#!/usr/bin/env python3
"""Write a Triton model repository for a language model's checkpoint, the rules for a gateway in front of it, and print
each command from the checkpoint to a Triton that serves it.

    scripts/export_trtllm.py CHECKPOINT OUTPUT                     # TensorRT-LLM's LLM API: no engine is built
    scripts/export_trtllm.py CHECKPOINT OUTPUT --backend engine    # a TensorRT engine between models that tokenize
    scripts/export_trtllm.py CHECKPOINT OUTPUT --backend vllm      # the vLLM backend

CHECKPOINT is a Hugging Face folder, a NeMo 2 folder or a .nemo file (then --tokenizer DIR is a Hugging Face folder of
the same model). It needs no GPU and no packages; the commands that it prints do. Nothing is downloaded.

    OUTPUT/models/           the repository, for tritonserver --model-repository
    OUTPUT/rules.yaml        for pointsman serve --rules; TRITON_URL and TRITON_GRPC say where the Triton is
    OUTPUT/commands.sh       what is printed

Exit status: 0, or 2 where the checkpoint cannot be exported.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from scripts.triton_llm import checkpoint, configs
from scripts.triton_llm.checkpoint import Checkpoint, CheckpointError
from scripts.triton_llm.commands import CHECKPOINT, EXPORT, Plan, Step, steps
from scripts.triton_llm.configs import Names, Sizes

MODELS = Path(__file__).parent / "triton_llm" / "models"


def main() -> int:
    arguments = _parser().parse_args()
    output: Path = arguments.output
    tokenizer: Path = arguments.tokenizer or arguments.checkpoint
    try:
        if output.exists() and any(output.iterdir()) and not arguments.force:
            raise CheckpointError(f"{output} is not empty: --force writes over what is there")
        found = checkpoint.read(arguments.checkpoint, tokenizer)
        plan = Plan(
            found,
            tokenizer,
            output,
            arguments.backend,
            arguments.release,
            arguments.dtype,
            arguments.tp,
            arguments.pp,
            arguments.max_batch_size,
            arguments.max_input_len,
            arguments.max_seq_len,
            arguments.max_beam_width,
        )
        way = list(steps(plan))
    except (CheckpointError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    sizes = Sizes(
        arguments.max_batch_size,
        arguments.max_beam_width,
        tokenizer_instances=arguments.tokenizer_instances,
        bls_instances=arguments.bls_instances,
        kv_cache_fraction=arguments.kv_cache_fraction,
    )
    served = _write(plan, sizes, tokenizer, Names(arguments.prefix))
    name = arguments.name or arguments.checkpoint.resolve().name.removesuffix(".nemo")
    (output / "rules.yaml").write_text(_rules(name, served, _copied_template(found, tokenizer, output)))
    script = "".join(_shown(step) for step in way)
    (output / "commands.sh").write_text(script)
    print(script, end="")
    print("\n# The gateway in front of it")
    print(f"TRITON_URL=http://GPU_HOST:8000 TRITON_GRPC=GPU_HOST:8001 pointsman serve --rules {output}/rules.yaml")
    return 0


def _parser() -> argparse.ArgumentParser:
    assert __doc__ is not None
    about, _, more = __doc__.partition("\n\n")
    parser = argparse.ArgumentParser(
        description=about, epilog=more, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("checkpoint", type=Path, help="a Hugging Face folder, a NeMo 2 folder, or a .nemo file")
    parser.add_argument("output", type=Path, help="the folder to write")
    parser.add_argument("--backend", choices=["llmapi", "engine", "vllm"], default="llmapi")
    parser.add_argument("--name", help="the model's name for clients of the gateway; default: the checkpoint's name")
    parser.add_argument("--prefix", default="", help="of the models' names in Triton, which may have several: llama-3-")
    parser.add_argument(
        "--tokenizer", type=Path, help="a Hugging Face folder with the tokenizer; default: the checkpoint"
    )
    parser.add_argument("--tp", type=_count, default=1, help="GPUs that share each layer (tensor parallelism)")
    parser.add_argument("--pp", type=_count, default=1, help="GPUs that share the layers (pipeline parallelism)")
    parser.add_argument("--dtype", choices=["auto", "float16", "bfloat16"], default="auto")
    parser.add_argument("--max-batch-size", type=_count, default=64, help="requests at a time")
    parser.add_argument("--max-input-len", type=_count, default=8192, help="tokens of the longest prompt")
    parser.add_argument("--max-seq-len", type=_count, default=16384, help="tokens of prompt and answer together")
    parser.add_argument("--max-beam-width", type=_count, default=1)
    parser.add_argument("--kv-cache-fraction", type=_share, default=0.9, help="of the GPU's memory beside the weights")
    parser.add_argument(
        "--tokenizer-instances", type=_count, default=2, help="processes of preprocessing and postprocessing"
    )
    parser.add_argument("--bls-instances", type=_count, default=16, help="requests at a time through tensorrt_llm_bls")
    parser.add_argument("--release", default="25.12", help="of Triton's container, as 25.12")
    parser.add_argument("--force", action="store_true", help="write into a folder that is not empty")
    return parser


def _count(text: str) -> int:
    if (number := int(text)) < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return number


def _share(text: str) -> float:
    if not 0 < (number := float(text)) <= 1:
        raise argparse.ArgumentTypeError("must be above 0, and at most 1")
    return number


def _write(plan: Plan, sizes: Sizes, tokenizer: Path, names: Names) -> str:
    """Write the repository; return the name of the model that clients use."""
    models = plan.output / "models"
    if plan.backend == "vllm":
        _model(models / names.vllm, configs.vllm(names.vllm), {"model.json": _vllm_arguments(plan, sizes)})
        return names.vllm
    if plan.backend == "llmapi":
        _model(models / names.engine, configs.llmapi(names.engine), {"model.yaml": _llm_arguments(plan, sizes)})
        return names.engine
    engine = configs.engine(names, sizes, f"{EXPORT}/engine", f"{EXPORT}/models/{names.preprocessing}/1/tokenizer")
    _model(models / names.engine, engine, {})
    ends, pad = plan.checkpoint.end_ids, plan.checkpoint.pad_id
    for model, config, source in (
        (names.preprocessing, configs.preprocessing(names, sizes, ends, pad), "preprocessing.py"),
        (names.postprocessing, configs.postprocessing(names, sizes), "postprocessing.py"),
        (names.bls, configs.bls(names, sizes), "bls.py"),
    ):
        files = {"model.py": (MODELS / source).read_text(), "tokens.py": (MODELS / "tokens.py").read_text()}
        _model(models / model, config, files)
        (models / model / "1" / "tokenizer").mkdir(exist_ok=True)
        for file in checkpoint.TOKENIZER_FILES:
            if (tokenizer / file).is_file():
                shutil.copyfile(tokenizer / file, models / model / "1" / "tokenizer" / file)
    _model(models / names.ensemble, configs.ensemble(names, sizes), {})
    return names.bls


def _model(folder: Path, config: str, files: Mapping[str, str]) -> None:
    (folder / "1").mkdir(parents=True, exist_ok=True)
    (folder / "config.pbtxt").write_text(config)
    for name, text in files.items():
        (folder / "1" / name).write_text(text)


def _vllm_arguments(plan: Plan, sizes: Sizes) -> str:
    arguments = {
        "model": CHECKPOINT,
        "dtype": plan.dtype,
        "tensor_parallel_size": plan.tensor_parallel,
        "pipeline_parallel_size": plan.pipeline_parallel,
        "max_model_len": plan.max_seq_len,
        "max_num_seqs": plan.max_batch_size,
        "gpu_memory_utilization": sizes.kv_cache_fraction,
        "enable_prefix_caching": True,
    }
    return json.dumps(arguments, indent=2) + "\n"


def _llm_arguments(plan: Plan, sizes: Sizes) -> str:
    return f"""\
# The arguments of tensorrt_llm.LLM, and what Triton is told (triton_config).
model: {CHECKPOINT}
backend: pytorch
dtype: {plan.dtype}
tensor_parallel_size: {plan.tensor_parallel}
pipeline_parallel_size: {plan.pipeline_parallel}
max_batch_size: {plan.max_batch_size}
max_seq_len: {plan.max_seq_len}
kv_cache_config:
  free_gpu_memory_fraction: {sizes.kv_cache_fraction}
  enable_block_reuse: true
triton_config:
  max_batch_size: 0  # its model takes one prompt per request; the engine batches them
  decoupled: true    # streams
"""


def _copied_template(found: Checkpoint, tokenizer: Path, output: Path) -> str | None:
    """The name of the file with the chat template, beside the rules; None where the model has none."""
    if not found.has_chat_template:
        return None
    name = "chat_template.jinja" if (tokenizer / "chat_template.jinja").is_file() else "tokenizer_config.json"
    shutil.copyfile(tokenizer / name, output / name)
    return name


def _rules(name: str, served: str, template: str | None) -> str:
    chat = f"\n    chat_template: {template}" if template else ""
    return f"""\
version: 1
engines:
  triton:
    endpoints: [{{url: "${{TRITON_URL:-http://localhost:8000}}", grpc: "${{TRITON_GRPC:-localhost:8001}}"}}]
    balance: prefix
    load: {{source: metrics, path: ":8002/metrics"}}
    unsupported: drop    # options without an input are left out and named in the reply
    timeout: 2m{chat}
routes:
  - name: {json.dumps(name)}
    match: {{model: {json.dumps(name)}}}
    engine: triton
    model: {served}
  - {{name: everything-else, engine: triton}}
"""


def _shown(step: Step) -> str:
    place = "" if step.is_in_container else " (on the host)"
    return f"# {step.why}{place}\n{step.command}\n"


if __name__ == "__main__":
    sys.exit(main())
