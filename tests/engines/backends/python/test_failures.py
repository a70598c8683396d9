"""Errors of Python models have Triton's texts, and affect only their own requests."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from engines.core.errors import EngineError, ErrorCode
from engines.instances import InstanceSet
from tests.engines.instances.stage import TEXT_CONFIG, Stage, model, request, tensor, texts

# Each function is one fault (or success); a request names the function to run.
ACTOR = """
def execute(self, requests):
    return getattr(self, pb.get_input_tensor_by_name(requests[0], "text").as_numpy()[0].decode())(requests)

def echo(self, requests):
    return [pb.InferenceResponse([pb.get_input_tensor_by_name(each, "text")]) for each in requests]

def raises(self, requests):
    raise ValueError("boom")

def raises_deep(self, requests):
    return self.raises(requests)

def raises_own(self, requests):
    raise pb.TritonModelException("boom")

def exits(self, requests):
    sys.exit(3)

def none(self, requests):
    return None

def nones(self, requests):
    return [None for _ in requests]

def less(self, requests):
    return []

def more(self, requests):
    return [pb.InferenceResponse() for _ in range(3)]

def no_list(self, requests):
    return ()

def no_response(self, requests):
    return [1 for _ in requests]

def first_only(self, requests):
    return [pb.InferenceResponse(), 5][: len(requests)]

def no_outputs(self, requests):
    return [pb.InferenceResponse()]

def other_name(self, requests):
    return [pb.InferenceResponse([pb.Tensor("other", np.zeros(2, np.int32))])]

def other_datatype(self, requests):
    return [pb.InferenceResponse([pb.Tensor("text", np.zeros(2, np.float32))])]

def other_rank(self, requests):
    return [pb.InferenceResponse([pb.Tensor("text", np.full((2, 1), b"x", object))])]

def no_datatype(self, requests):
    return [pb.InferenceResponse([pb.Tensor("text", np.zeros(2, np.complex64))])]

def no_name(self, requests):
    return [pb.InferenceResponse([pb.Tensor("", np.zeros(2, np.int32))])]

def no_array(self, requests):
    return [pb.InferenceResponse([pb.Tensor("text", [1, 2])])]

def no_tensor(self, requests):
    return [pb.InferenceResponse([None])]

def error(self, requests):
    return [pb.InferenceResponse(error=pb.TritonError("not here", pb.TritonError.NOT_FOUND))]

def error_and_outputs(self, requests):
    return [pb.InferenceResponse([pb.Tensor("text", np.full(1, b"x", object))], error=pb.TritonError("both"))]

def parameter_of_float(self, requests):
    return [pb.InferenceResponse([], parameters={"a": 1.5})]

def sends_twice(self, requests):
    sender = requests[0].get_response_sender()
    sender.send(pb.InferenceResponse([pb.get_input_tensor_by_name(requests[0], "text")]), flags=1)
    sender.send(pb.InferenceResponse(), flags=1)

def sends_and_returns(self, requests):
    requests[0].get_response_sender().send(self.echo(requests)[0], flags=1)
    return self.echo(requests)

def sends_end_first(self, requests):
    requests[0].get_response_sender().send(flags=1)

def sends_nothing(self, requests):
    requests[0].get_response_sender().send()

def sends_other_flags(self, requests):
    requests[0].get_response_sender().send(flags=7)

def texts_of_numpy(self, requests):
    name, text = np.array(["text", "value"])
    outputs = [pb.Tensor(name, np.array([b"as", b"bytes"]))]
    return [pb.InferenceResponse(outputs, parameters={name: text, "n": True}) for _ in requests]

def sends_later(self, requests):
    threading.Timer(0.05, requests[0].get_response_sender().send, (self.echo(requests)[0], 1)).start()

def reschedules_and_answers(self, requests):
    requests[0].set_release_flags(pb.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE)
    return [1]

def execs_itself(self, requests):
    requests[0].exec()

async def raises_async(self, requests):
    raise ValueError("boom")
"""

PREFIX = "Failed to process the request(s) for model 'actor_0_0', message: "
AT = "\n\nAt:\n  {path}("
# The beginning of the message, or its beginning and end with any text between.
FAILURES = [
    ("raises", PREFIX + "ValueError: boom" + AT),
    ("raises_own", PREFIX + "TritonModelException: boom" + AT),
    ("raises_async", PREFIX + "ValueError: boom" + AT),
    ("exits", PREFIX + "SystemExit: 3" + AT),
    ("none", "model 'actor' has let go of the request without a response"),
    ("nones", "model 'actor' has let go of the request without a response"),
    (
        "less",
        PREFIX + "Number of InferenceResponse objects do not match the number of InferenceRequest objects. "
        "InferenceRequest(s) size is:1, and InferenceResponse(s) size is:0\n",
    ),
    (
        "more",
        PREFIX + "Number of InferenceResponse objects do not match the number of InferenceRequest objects. "
        "InferenceRequest(s) size is:1, and InferenceResponse(s) size is:3\n",
    ),
    ("no_list", PREFIX + "Expected a list in the execute return, found type '<class 'tuple'>'."),
    (
        "no_response",
        PREFIX + "Expected an 'InferenceResponse' object in the execute function return list, found type "
        "'<class 'int'>'.",
    ),
    ("no_datatype", PREFIX + "TritonModelException: NumPy dtype is not supported." + AT),
    ("no_name", PREFIX + "TritonModelException: Tensor name cannot be an empty string." + AT),
    ("no_array", PREFIX + "TypeError: __init__(): incompatible constructor arguments."),
    ("no_tensor", PREFIX + "TritonModelException: Output tensor for inference response should not be empty." + AT),
    ("error_and_outputs", "both"),
    ("parameter_of_float", PREFIX + "TritonModelException: Expect parameters values to have type bool/int/str"),
    (
        "sends_end_first",
        PREFIX + "TritonModelException: Unable to send response. Non-decoupled model cannot send complete final "
        "before sending a response." + AT,
    ),
    (
        "sends_nothing",
        PREFIX + "TritonModelException: Inference Response object must be provided when the response flags is set to "
        "zero." + AT,
    ),
    ("sends_other_flags", PREFIX + "TritonModelException: Unable to send response. Unsupported flag provided." + AT),
    (
        "reschedules_and_answers",
        PREFIX + "Expected a None object in the execute function return list for reschduled request, found type "
        "'<class 'int'>'.",
    ),
    ("execs_itself", PREFIX + "TritonModelException: a request that this model is to answer cannot be sent"),
]
# Faults that pass, as in Triton, or that occur after `execute` has returned.
PASSES = [
    ("no_outputs", []),
    ("other_name", []),
    ("sends_twice", ["sends_twice"]),
    ("sends_and_returns", ["sends_and_returns"]),
    ("sends_later", ["sends_later"]),
    ("texts_of_numpy", ["as", "bytes"]),
    ("echo", ["echo"]),
]


@pytest.fixture(scope="module")
def actor(stage: Stage, tmp_path_factory: pytest.TempPathFactory) -> Iterator[InstanceSet]:
    running = stage.start(model(tmp_path_factory.mktemp("models") / "actor", ACTOR))
    yield running
    # All requests went to one process, without a restart.
    assert not stage.changes


@pytest.mark.parametrize(("act", "message"), FAILURES, ids=[act for act, _ in FAILURES])
def test_failures_have_triton_s_texts(stage: Stage, actor: InstanceSet, act: str, message: str) -> None:
    """The request fails with Triton's text, and the next request succeeds."""
    (answers,) = stage.execute(actor, request(tensor("text", [act])))
    error = answers.error()
    path = str(actor.processes[0]._fields["version_directory"]) + "/model.py"
    assert error.message.startswith(message.format(path=path) if "{path}" in message else message)
    assert error.code is ErrorCode.INTERNAL
    assert texts(stage.ask(actor, tensor("text", ["echo"]))) == ["echo"]


@pytest.mark.parametrize(("act", "expected"), PASSES, ids=[act for act, _ in PASSES])
def test_oddities_that_pass(stage: Stage, actor: InstanceSet, act: str, expected: list[str]) -> None:
    """Outputs that are not requested are dropped; so is anything after the response."""
    response = stage.ask(actor, tensor("text", [act]))
    assert response.error is None
    assert (texts(response) if response.outputs else []) == expected


def test_the_innermost_place_comes_first(stage: Stage, actor: InstanceSet) -> None:
    """The lines of the model's code alone, from where it was raised outwards."""
    (answers,) = stage.execute(actor, request(tensor("text", ["raises_deep"])))
    places = [line.split(": ")[-1] for line in answers.error().message.partition("At:\n")[2].splitlines()]
    assert places == ["raises", "raises_deep", "execute"]


def test_an_error_has_its_code(stage: Stage, actor: InstanceSet) -> None:
    """The error has the code that the model chose."""
    (answers,) = stage.execute(actor, request(tensor("text", ["error"])))
    assert (answers.error().code, answers.error().message) == (ErrorCode.NOT_FOUND, "not here")


def test_a_failure_fails_the_whole_execution(stage: Stage, actor: InstanceSet) -> None:
    """A failure fails each request of the execution once."""
    for act in ("raises", "first_only"):
        answers = stage.execute(actor, *[request(tensor("text", [act]))] * 2)
        assert {each.error().message[: len(PREFIX)] for each in answers} == {PREFIX}


LOADS = [
    (
        "def initialize(self, args):\n    raise ValueError('bad start')",
        "ValueError: bad start\n\nAt:\n  {path}(6): initialize",
    ),
    ("def __init__(self):\n    raise ValueError('ctor')", "ValueError: ctor\n\nAt:\n  {path}(6): __init__\n"),
    (
        "# module\nimport nothing_like_that\n",
        "ModuleNotFoundError: No module named 'nothing_like_that'\n\nAt:\n  {path}(2): <module>",
    ),
    ("# module\ndef f(:\n", "SyntaxError: invalid syntax (model.py, line 2)"),
    ("# module\nx = 1\n", "AttributeError: module '1.model' has no attribute 'TritonPythonModel'"),
    ("def initialize(self, args):\n    os._exit(4)", "Stub process 'broken_0_0' is not healthy."),
    ("def initialize(self, args):\n    os.kill(os.getpid(), 9)", "Stub process 'broken_0_0' is not healthy."),
    (
        "@staticmethod\ndef auto_complete_config(c):\n    raise ValueError('ac')",
        "ValueError: ac\n\nAt:\n  {path}(7): auto_",
    ),
    (
        "@staticmethod\ndef auto_complete_config(c):\n    return 3",
        "auto_complete_config function in model 'broken' must return a valid pb.ModelConfig object.",
    ),
]


@pytest.mark.parametrize(("code", "message"), LOADS, ids=range(len(LOADS)))
def test_a_model_that_does_not_load(stage: Stage, tmp_path: Path, code: str, message: str) -> None:
    """The load fails with Triton's text."""
    spec = model(tmp_path / "broken", code)
    with pytest.raises(EngineError) as failure:
        stage.start(spec)
    assert failure.value.message.startswith(message.format(path=spec.version_directory / "model.py"))


def test_a_model_without_its_file(stage: Stage, tmp_path: Path) -> None:
    """The error names the path."""
    spec = model(tmp_path / "empty", "")
    (spec.version_directory / "model.py").unlink()
    with pytest.raises(EngineError, match=r"Python model file not found in '.*/empty/1/model.py'"):
        stage.start(spec)


MISFITS = [
    (
        "other_datatype",
        ("FP32", (2,)),
        "unexpected datatype TYPE_FP32 for inference output 'text', expecting TYPE_STRING",
    ),
    ("other_rank", ("BYTES", (2, 1)), "unexpected shape for output 'text' for model 'actor'. Expected [-1], got [2,1]"),
]


def checked(check: str) -> str:
    return TEXT_CONFIG + 'parameters { key: "CHECK_OUTPUTS" value { string_value: "' + check + '" } }'


def test_outputs_that_do_not_fit_pass_as_in_triton(
    stage: Stage, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Outputs of another datatype or shape than configured are handed on, with one warning per output."""
    running = stage.start(model(tmp_path / "actor", ACTOR))
    for act, described, _ in MISFITS * 2:
        output = stage.ask(running, tensor("text", [act])).outputs[0]
        assert (output.datatype, output.shape) == described
    (warning,) = [record.message for record in caplog.records if "unexpected" in record.message]
    assert MISFITS[0][2] in warning and "CHECK_OUTPUTS: true makes it an error" in warning


def test_outputs_are_checked_on_request(stage: Stage, tmp_path: Path) -> None:
    """A parameter of the model makes them errors."""
    running = stage.start(model(tmp_path / "actor", ACTOR, checked("true")))
    for act, _, message in MISFITS:
        (answers,) = stage.execute(running, request(tensor("text", [act])))
        assert answers.error().message == message


def test_unchecked_outputs_pass_without_a_warning(
    stage: Stage, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A parameter of the model turns the warning off."""
    running = stage.start(model(tmp_path / "actor", ACTOR, checked("false")))
    for act, described, _ in MISFITS:
        output = stage.ask(running, tensor("text", [act])).outputs[0]
        assert (output.datatype, output.shape) == described
    assert not [record for record in caplog.records if "unexpected" in record.message]
