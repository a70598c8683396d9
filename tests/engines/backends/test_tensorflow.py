"""SavedModels answer what tensorflow itself does."""

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")

from engines.backends import tensorflow as backend_of_tensorflow  # noqa: E402
from engines.core.errors import EngineError  # noqa: E402
from tests.engines.backends.support import answers, configuration, spec  # noqa: E402

WEIGHT = np.arange(6, dtype=np.float32).reshape(3, 2)


class Net(tf.Module):
    def __init__(self):
        super().__init__()
        self.weight = tf.Variable(WEIGHT)

    @tf.function(input_signature=[tf.TensorSpec([None, 3], tf.float32, name="x")])
    def serve(self, x):
        return {"y": tf.matmul(x, self.weight)}

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string, name="text")])
    def shout(self, text):
        return {"loud": tf.strings.upper(text)}


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    directory = tmp_path_factory.mktemp("net")
    net = Net()
    signatures = {"serving_default": net.serve, "shout": net.shout}
    tf.saved_model.save(net, str(directory / "1" / "model.savedmodel"), signatures=signatures)
    return directory


def started(directory, text, **more):
    config = configuration(text)
    backend_of_tensorflow.complete(config, directory)
    backend = backend_of_tensorflow.create()
    backend.initialize(spec(directory, config, **more))
    return backend


def test_a_batch_answers_as_tensorflow_does(saved):
    x = np.random.default_rng(0).standard_normal((3, 3)).astype(np.float32)
    first, second = answers(started(saved, 'name: "net"'), {"x": x[:1]}, {"x": x[1:]})
    np.testing.assert_allclose(np.concatenate([first.answer["y"], second.answer["y"]]), x @ WEIGHT, rtol=1e-5)


def test_a_configuration_is_completed_from_the_signature(saved):
    config = configuration('name: "net"')
    backend_of_tensorflow.complete(config, saved)
    assert config == configuration(
        """
        name: "net" max_batch_size: 4 dynamic_batching {}
        input { name: "x" data_type: TYPE_FP32 dims: 3 } output { name: "y" data_type: TYPE_FP32 dims: 2 }
        """
    )


def test_another_signature_may_be_served_and_strings_go_through(saved):
    backend = started(saved, 'name: "net" parameters { key: "TF_SIGNATURE_DEF" value { string_value: "shout" } }')
    (request,) = answers(backend, {"text": np.array([b"ab", b"\xff"], object)})
    assert request.answer["loud"].tolist() == [b"AB", b"\xff"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('parameters { key: "TF_SIGNATURE_DEF" value { string_value: "no" } }', "has no signature 'no', it has "),
        (
            'max_batch_size: 1 input { name: "z" data_type: TYPE_FP32 dims: 3 } '
            'output { name: "y" data_type: TYPE_FP32 dims: 2 }',
            "unexpected inference input 'z', allowed inputs are: x",
        ),
        ('default_model_filename: "none.savedmodel"', "unable to find"),
    ],
)
def test_a_failed_load_has_a_reason(saved, text, message):
    with pytest.raises(EngineError) as error:
        started(saved, f'name: "net" {text}')
    assert message in error.value.message
