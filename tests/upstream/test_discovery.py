"""Reading the model list of an OpenAI engine."""

from __future__ import annotations

import pytest

from gateway.protocol.advertised_models import read_model_list

LISTS = [
    (b'{"object":"list","data":[{"id":"llama","object":"model"},{"id":"llama-lora"}]}', {"llama", "llama-lora"}),
    (b'{"models":[{"name":"qwen3:8b","model":"qwen3:8b"},{"name":"gemma"}]}', {"qwen3:8b", "gemma"}),  # Ollama
    (b'{"models":[{"name":"a.gguf","model":"a.gguf"}],"data":[{"id":"a"}]}', {"a"}),  # llama.cpp sends both
    (b'[{"id":"a"},{"id":"b"}]', {"a", "b"}),
    (b'{"data":[]}', set()),
    (b'{"data":null,"object":"list"}', set()),  # Ollama before its first model
    (b'{"data":[{"name":"x"},"y",null,{"id":3},{"id":""}]}', set()),
    (b'{"error":"no such path"}', None),
    (b'"models"', None),
    (b"<html>", None),
    (b"", None),
]


@pytest.mark.parametrize("body, models", LISTS)
def test_models_are_read_in_every_form(body: bytes, models: set[str] | None) -> None:
    """OpenAI's form, Ollama's and a bare list are read; any other body yields no models."""
    found = read_model_list(body)
    assert (found.names if found is not None else None) == models
