"""The pytorch backend's parameters: Triton's, and a few more."""

from __future__ import annotations

import json
import logging
from contextlib import AbstractContextManager, ExitStack
from typing import Any

from engines.backends.interfaces import InstanceSpec
from engines.backends.model_config import Parameters, fair_share_of_cores
from engines.core.errors import invalid

_log = logging.getLogger(__name__)
_AUTOCAST_DTYPES = ("auto", "float16", "bfloat16")


class Settings:
    """How a model runs: the parameters of its configuration."""

    def __init__(self, spec: InstanceSpec) -> None:
        """Raises: EngineError for an invalid value."""
        parameters = Parameters(spec.config)
        flag, number = parameters.flag, parameters.number
        self.inference_mode = flag("INFERENCE_MODE", True)
        autocast = parameters.one_of("AUTOCAST_DTYPE", _AUTOCAST_DTYPES, "auto")
        self.autocast_dtype = autocast if flag("ENABLE_AUTOCAST") else None
        self.channels_last = flag("CHANNELS_LAST")
        self.compile_options = _compile_options(parameters)  # None: it is not compiled
        self.optimized_execution = not flag("DISABLE_OPTIMIZED_EXECUTION")
        self.cudnn = not flag("DISABLE_CUDNN")
        self.share_weights = flag("ENABLE_WEIGHT_SHARING")
        self.clean_cache = flag("ENABLE_CACHE_CLEANING")
        threads = number("INTRA_OP_THREAD_COUNT", number("NUM_THREADS"))
        self.num_threads = threads or fair_share_of_cores(spec.config)
        # 0: torch's own choice.
        self.num_interop_threads = number("INTER_OP_THREAD_COUNT", number("NUM_INTEROP_THREADS"))
        self.jit_executor = _tristate(parameters, "ENABLE_JIT_EXECUTOR")
        self.jit_profiling = _tristate(parameters, "ENABLE_JIT_PROFILING")
        self.tensor_fuser = _tristate(parameters, "ENABLE_TENSOR_FUSER")
        self.device = parameters.text("DEVICE")
        self.method = parameters.text("FORWARD_METHOD_NAME", "forward")


def _tristate(parameters: Parameters, key: str) -> bool | None:
    return parameters.flag(key) if parameters.text(key) else None


def _compile_options(parameters: Parameters) -> dict[str, Any] | None:
    """The options of torch.compile. Triton compiles every eager class; here TORCH_COMPILE or its options enable it,
    because compiling can delay the first request by minutes."""
    text = parameters.text("TORCH_COMPILE_OPTIONAL_PARAMETERS")
    if not parameters.flag("TORCH_COMPILE", default=bool(text)):
        return None
    try:
        options = json.loads(text or "{}")
    except ValueError as error:
        raise invalid(f"parameter 'TORCH_COMPILE_OPTIONAL_PARAMETERS' is no JSON: {error}") from error
    if not isinstance(options, dict) or "model" in options:
        raise invalid("parameter 'TORCH_COMPILE_OPTIONAL_PARAMETERS' has to be an object of options other than 'model'")
    return None if options.get("disable") else options


def apply_to_process(torch: Any, settings: Settings) -> None:
    """Set the intra-op threads of this thread, and the other settings of the process."""
    torch.set_num_threads(settings.num_threads)
    if settings.num_interop_threads:
        try:
            torch.set_num_interop_threads(settings.num_interop_threads)
        except RuntimeError:
            _log.info("the number of inter-op threads stays as it is: torch has already started them")
    for value, setter in (
        (settings.jit_executor, "_jit_set_profiling_executor"),
        (settings.jit_profiling, "_jit_set_profiling_mode"),
        (settings.tensor_fuser, "_jit_set_texpr_fuser_enabled"),
    ):
        if value is not None and hasattr(torch._C, setter):
            getattr(torch._C, setter)(value)


def run_context(torch: Any, settings: Settings, device: Any) -> AbstractContextManager[Any]:
    """The context of one run."""
    stack = ExitStack()
    stack.enter_context(torch.inference_mode() if settings.inference_mode else torch.no_grad())
    if settings.autocast_dtype is not None:
        stack.enter_context(torch.autocast(device.type, dtype=_autocast_dtype(torch, settings, device)))
    if not settings.optimized_execution:
        stack.enter_context(torch.jit.optimized_execution(False))
    if not settings.cudnn and device.type == "cuda":
        stack.enter_context(torch.backends.cudnn.flags(enabled=False))
    return stack


def _autocast_dtype(torch: Any, settings: Settings, device: Any) -> Any:
    if settings.autocast_dtype == "auto":
        return torch.bfloat16 if device.type == "cpu" else torch.float16
    return getattr(torch, str(settings.autocast_dtype))
