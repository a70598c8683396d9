"""Devices and kernels: whether they compute right, and how fast they are."""

from __future__ import annotations

import os
import sys
import time

from engines.doctor.finding import Finding, fail, ok, skipped, warn

# Until 2.13 a copy to the GPU may read its source after it was freed (PR 181017; wheels 2.7 to 2.12 read).
_OLDEST_TORCH_OF_MACS = (2, 13)
_DISPATCHES, _ROUNDS = 2000, 5
# Slower than this, decoding a small model is bound by the processor that hands out work.
_SLOW_DISPATCH_US = 30.0
_PROMPT_TOKENS, _ANSWER_TOKENS, _BATCHES = 32, 32, (1, 8)
# These change what kernels compute, or how much memory they may take.
_VARIABLES = ("PYTORCH_MPS_FAST_MATH", "PYTORCH_MPS_HIGH_WATERMARK_RATIO", "PYTORCH_ENABLE_MPS_FALLBACK")


def torch_version() -> Finding:
    """torch's version; on a Mac an older one may copy freed memory to the GPU."""
    import torch

    version = f"torch {torch.__version__}"
    release = tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2])
    if sys.platform == "darwin" and release < _OLDEST_TORCH_OF_MACS:
        return fail(f"{version}: copies to the GPU may read freed memory: wrong tokens", 'pip install "torch>=2.13"')
    return ok(version)


def gpu() -> Finding:
    """The device of `auto`, tried with an allocation."""
    import torch

    from engines.paged.bench.machine import describe_machine
    from engines.paged.cache.memory import readable
    from engines.paged.device import choose_device, mps_failure

    variables = [name for name in _VARIABLES if os.environ.get(name)]
    if sys.platform == "darwin":
        if not torch.backends.mps.is_available():
            return fail("torch says that MPS is not available", "use a Python for arm64 and torch's own wheel")
        if why := mps_failure():
            return fail(
                f"MPS is there but cannot be used: {why}", "a virtual Mac has no GPU: use --device cpu, or a real one"
            )
    device = choose_device("auto")
    text = f"auto computes on {device.type}: {describe_machine(device)['gpu'] or describe_machine(device)['chip']}"
    if device.type == "mps":
        text += f", {readable(torch.mps.recommended_max_memory())} recommended for the GPU"
    if os.environ.get("PYTORCH_MPS_FAST_MATH", "0") != "0":
        return warn(f"{text}; PYTORCH_MPS_FAST_MATH is set: kernels rely on safe mathematics", "unset it")
    return ok(text, variables=variables)


def kernels() -> Finding:
    """Metal's kernels against the reference, on a Mac's GPU."""
    import torch

    from engines.paged.device import choose_device
    from engines.paged.ops.metal.check_cases import GROUPS
    from engines.paged.ops.metal.ops import MetalOps
    from engines.paged.ops.metal.self_check import find_failures

    device = choose_device("auto")
    if device.type != "mps":
        return skipped("there is no Apple GPU here")
    ops = MetalOps(torch.mps.compile_shader, device)
    began = time.perf_counter()
    failed = find_failures(ops, (torch.float32, torch.float16, torch.bfloat16))
    seconds = time.perf_counter() - began
    text = f"{len(GROUPS) - len(failed)} of {len(GROUPS)} groups of kernels agree with the reference on this GPU"
    if failed:
        reasons = "; ".join(f"{group}: {why}" for group, why in sorted(failed.items()))
        cure = "torch computes these, slower; attach this report to an issue"
        return warn(f"{text}; {reasons}", cure, failed=failed, seconds=seconds)
    return ok(f"{text} ({seconds:.1f} s)", seconds=seconds)


def replacements() -> Finding:
    """The replacements of a failing kernel: torch on the GPU, the compiled attention and torch on the processor."""
    import torch

    from engines.paged.device import choose_device
    from engines.paged.ops.metal.check_cases import GROUPS
    from engines.paged.ops.metal.self_check import disagreements
    from engines.paged.ops.reference import Ops

    device = choose_device("auto")
    failed = disagreements(Ops(device), (torch.float32, torch.float16, torch.bfloat16), GROUPS)
    text = f"torch on {device.type}: {len(GROUPS) - len(failed)} of {len(GROUPS)} groups agree with the reference"
    if failed:
        reasons = "; ".join(f"{group}: {why}" for group, why in sorted(failed.items()))
        return fail(f"{text}; {reasons}", "update torch and the system, or use --device cpu", failed=failed)
    return ok(text)


def native() -> Finding:
    """Attention on the processor, compiled and compared with torch's."""
    import torch

    from engines.core.errors import EngineError
    from engines.paged.ops.native.attention import NativeOps

    dtypes = (torch.float32, torch.bfloat16)
    try:
        for dtype in dtypes:
            NativeOps(is_required=True).prepare_attention(8, 2, 64, dtype)
    except EngineError as error:
        return warn(f"torch attends on the processor, slower: {error}", "see the check of the compiler")
    return ok(f"the compiled attention agrees with torch in {' and '.join(str(d)[6:] for d in dtypes)}")


def dispatch() -> Finding:
    """Microseconds from one dispatch of a tiny kernel to the next: what Python, torch and Metal need for each."""
    import torch

    from engines.paged.device import choose_device
    from engines.paged.ops.metal.ops import MetalOps

    device = choose_device("auto")
    if device.type != "mps":
        return skipped("there is no Apple GPU here")
    ops = MetalOps(torch.mps.compile_shader, device)
    source = torch.zeros(256, dtype=torch.int32, device=device)
    target = torch.empty_like(source)
    library = ops.kernels.load("ordering")
    rounds = []
    for _ in range(_ROUNDS + 1):  # the first one warms up
        ops.synchronize()
        began = time.perf_counter()
        for _ in range(_DISPATCHES):
            library.run("ordering_forth", (1,), 256, target, source)
        encoded = time.perf_counter()
        ops.synchronize()
        rounds.append((encoded - began, time.perf_counter() - began))
    encode, total = (1e6 * min(times) / _DISPATCHES for times in zip(*rounds[1:], strict=True))
    text = f"{total:.1f} us per dispatch, {encode:.1f} of them to encode it ({device.type})"
    figures = {"encode_us": encode, "whole_us": total, "device": device.type}
    if total > _SLOW_DISPATCH_US:
        return warn(text, "close other programs and measure again; attach this report to an issue", **figures)
    return ok(text, **figures)


def bandwidth() -> Finding:
    """Bandwidth of the device's memory, which bounds decoding."""
    from engines.paged.bench.machine import measure_bandwidth
    from engines.paged.cache.memory import available_memory
    from engines.paged.device import choose_device, use_threads

    use_threads(None)
    device = choose_device("auto")
    measured = measure_bandwidth(device, available_memory(device, 0))
    text = f"{measured.best / 1e9:.1f} GB/s ({device.type}): read {max(measured.read) / 1e9:.1f}, "
    text += f"copy {max(measured.copy) / 1e9:.1f}"
    return ok(text, read=list(measured.read), copy=list(measured.copy), buffer_bytes=measured.buffer_bytes)


def tokens() -> Finding:
    """Tokens a second of the sample model, which is small enough to measure the engine rather than the memory."""
    from engines.paged.base.options import EngineOptions
    from engines.paged.bench.runner import BenchSpec, run_bench
    from engines.paged.device import choose_device
    from engines.samples.repository import MODELS

    folder = MODELS / "storyteller" / "1"
    text, figures = [], {}
    for device in dict.fromkeys(("cpu", choose_device("auto").type)):
        options = EngineOptions(device=device)
        measured = run_bench(
            BenchSpec(folder, options, _BATCHES, _PROMPT_TOKENS, _ANSWER_TOKENS, 1), lambda what, done, total: None
        )
        rates = {point.batch: point.tokens_per_second for point in measured.points}
        text.append(f"{device}: " + ", ".join(f"{rate:,.0f} tokens/s with {batch}" for batch, rate in rates.items()))
        figures[device] = {str(batch): rate for batch, rate in rates.items()}
    return ok("storyteller on " + "; ".join(text), **figures)


def coreml() -> Finding:
    """CoreML compiles and runs a model on each choice of compute units."""
    import coremltools as ct
    import numpy as np
    from coremltools.converters.mil import Builder

    program = Builder.program(input_specs=[Builder.TensorSpec(shape=(1, 8))])(
        lambda x: Builder.add(x=x, y=np.float32(1))
    )
    expected = np.full((1, 8), 3, np.float32)
    times, wrong = {}, []
    for units in ("CPU_ONLY", "CPU_AND_GPU", "CPU_AND_NE", "ALL"):
        model = ct.convert(
            program,
            convert_to="mlprogram",
            compute_units=getattr(ct.ComputeUnit, units),
            minimum_deployment_target=ct.target.macOS13,
        )
        name = model.get_spec().description.input[0].name
        began = time.perf_counter()
        (answer,) = model.predict({name: np.full((1, 8), 2, np.float32)}).values()
        times[units] = time.perf_counter() - began
        if not np.allclose(answer, expected, rtol=1e-3):
            wrong.append(units)
    if wrong:
        return fail(
            f"CoreML computes 2 + 1 wrong on {', '.join(wrong)}", "update macOS; attach this report to an issue"
        )
    return ok("CoreML answers right on " + ", ".join(times), seconds=times)
