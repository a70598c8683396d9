"""Triton model repositories for language models: TensorRT-LLM (LLM API, or built engines) and the vLLM backend."""
