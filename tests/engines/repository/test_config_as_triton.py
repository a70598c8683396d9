"""The served configuration of a model equals a real Triton's.

The comparison is complete for configurations with inputs and outputs. Configurations that a backend completes are
compared with the backends (tests/engines/conformance).
"""

import asyncio
from pathlib import Path

import pytest
import tritonclient.grpc

from engines.repository import Mode, Repository
from gateway.demo.triton import TritonProcess
from gateway.protocol.protobuf import Message, parse
from tests.conftest import TEST_MODELS
from tests.engines.repository.fakes import XY, FakeLoader, ensemble, write_model

ODD = {
    "sequences": "max_batch_size: 4 sequence_batching { oldest { } }" + XY,
    "batches": "max_batch_size: 4 dynamic_batching { } "
    "instance_group [ { } ] "
    "optimization { input_pinned_memory { enable: false } } version_policy { all { } }" + XY,
    "steps": ensemble("batches"),
}


def of_triton(process: TritonProcess, name: str) -> Message:
    with tritonclient.grpc.InferenceServerClient(process.grpc_url) as client:
        return parse("inference.ModelConfig", client.get_model_config(name).config.SerializeToString())


def of_ours(root: Path, name: str) -> Message:
    async def load() -> Message:
        repository = Repository([root], FakeLoader(), mode=Mode.EXPLICIT, startup_models=[name])
        assert await repository.start() == {}
        config = repository.get(name).config
        await repository.close()
        return config

    return asyncio.run(load())


@pytest.mark.triton
@pytest.mark.parametrize("name", sorted(path.name for path in TEST_MODELS.iterdir()))
def test_the_test_models(name: str, triton: TritonProcess) -> None:
    """The configurations of all models in tests/models are equal."""
    assert of_ours(TEST_MODELS, name) == of_triton(triton, name)


@pytest.mark.triton
def test_what_is_filled_in(explicit_triton: TritonProcess, triton_root: Path) -> None:
    """Equal defaults: backend, schedulers, instance groups, memory, policies, and an ensemble's fields from its
    models."""
    root = triton_root / "models"
    with tritonclient.grpc.InferenceServerClient(explicit_triton.grpc_url) as client:
        for name, config in ODD.items():
            write_model(root, name, config)
            client.load_model(name)
            assert of_ours(root, name) == of_triton(explicit_triton, name)
