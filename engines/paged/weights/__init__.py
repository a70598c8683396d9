"""Weights from safetensors folders of all families and of MLX; quantization at load; LoRA adapters."""

from engines.paged.weights.loader import LoadedModel, LoadReport, load_model

__all__ = ["LoadReport", "LoadedModel", "load_model"]
