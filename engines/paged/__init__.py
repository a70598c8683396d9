"""The paged LLM engine: language models from Hugging Face folders, by continuous batching over a paged KV cache."""
