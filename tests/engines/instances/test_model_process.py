"""Instances that crash, hang, grow or stop: the host continues and restarts them."""

import logging
import os
import signal
import subprocess
import sys
import time
import venv
from collections.abc import Iterator
from pathlib import Path

import pytest

from engines.core.errors import EngineError, ErrorCode
from engines.instances import InstanceSet, ProcessLimits
from engines.instances.process import MAX_BYTES_A_SECOND
from tests.engines.instances.stage import TEXT_CONFIG, Answers, Stage, model, request, tensor, texts
from tests.support.waiting import eventually

REPOSITORY = Path(__file__).parents[3]

TOUGH = """
def initialize(self, args):
    self.name = args["model_instance_name"]
    self.grown = []

def execute(self, requests):
    act = pb.get_input_tensor_by_name(requests[0], "text").as_numpy()[0].decode()
    return getattr(self, act)(requests)

def pid(self, requests):
    return [pb.InferenceResponse([pb.Tensor("text", np.array([str(os.getpid()).encode()], object))]) for _ in requests]

def exits(self, requests):
    os._exit(3)

def dies(self, requests):
    os.kill(os.getpid(), signal.SIGSEGV)

def sleeps(self, requests):
    time.sleep(60)

def waits(self, requests):
    print("waiting", flush=True)
    while not requests[0].is_cancelled():
        time.sleep(0.005)
    return [pb.InferenceResponse(error=pb.TritonError("stopped", pb.TritonError.CANCELLED))]

def grows(self, requests):
    self.grown.append(np.ones(32 << 20, np.uint8))
    return self.pid(requests)

def closes(self, requests):
    threading.Thread(target=time.sleep, args=(600,)).start()
    os.closerange(3, 65536)
    return self.pid(requests)

def babbles(self, requests):
    def babble():
        while True:
            os.write(1, b"on and on\\n" * 100)
    threading.Thread(target=babble, daemon=True).start()
    return self.pid(requests)

def prints(self, requests):
    print("a line of", self.name)
    print("another", file=sys.stderr)
    os.system("echo a third")
    pb.Logger.log_warn("a warning")
    return self.pid(requests)

def finalize(self):
    print("finalized", flush=True)
"""

ORPHAN = """
def initialize(self, args):
    import subprocess
    with open({path!r}, "w") as file:
        file.write(str(subprocess.Popen(["sleep", "600"]).pid))

def execute(self, requests):
    pass
"""


def parameters(**values: str) -> str:
    return TEXT_CONFIG + "".join(
        f'\nparameters {{ key: "{key}" value {{ string_value: "{value}" }} }}' for key, value in values.items()
    )


@pytest.fixture(scope="module")
def tough(stage: Stage, tmp_path_factory: pytest.TempPathFactory) -> Iterator[InstanceSet]:
    config = parameters(EXECUTION_TIMEOUT_SECONDS="5", MAX_MEMORY_MB="200").replace("count: 1", "count: 2")
    yield stage.start(model(tmp_path_factory.mktemp("models") / "tough", TOUGH, config))


def act(stage: Stage, running: InstanceSet, name: str, instance: int = 0) -> Answers:
    (answers,) = stage.execute(running, request(tensor("text", [name])), instance=instance)
    return answers


def pid(stage: Stage, running: InstanceSet, instance: int = 0) -> int:
    return int(texts(act(stage, running, "pid", instance).one())[0])


ENDS = [
    ("exits", "Stub process 'tough_0_0' is not healthy."),
    ("dies", "Stub process 'tough_0_0' is not healthy."),
    ("closes", "Stub process 'tough_0_0' is not healthy."),
    (
        "sleeps",
        "Failed to process the request(s) for model instance 'tough_0_0', message: the execution takes longer than "
        "5 seconds",
    ),
]


@pytest.mark.parametrize(("name", "message"), ENDS, ids=[name for name, _ in ENDS])
def test_an_instance_that_ends_comes_back(stage: Stage, tough: InstanceSet, name: str, message: str) -> None:
    """The instance's call fails and the other instance continues. The scheduler is notified of the exit and the
    restart."""
    before, other = pid(stage, tough), pid(stage, tough, 1)
    stage.changes.clear()
    failing = act(stage, tough, name)
    assert pid(stage, tough, 1) == other
    assert (failing.error().code, failing.error().message) == (ErrorCode.INTERNAL, message)
    assert pid(stage, tough) != before
    assert stage.changes == ["tough_0_0", "tough_0_0"]
    assert not Path(f"/proc/{before}").exists()  # not even as a zombie


def test_one_that_grows_is_replaced_between_executions(
    stage: Stage, tough: InstanceSet, caplog: pytest.LogCaptureFixture
) -> None:
    """An instance above its memory limit restarts between executions: no call fails, and the log has the reason."""
    before = pid(stage, tough)
    for _ in range(8):
        assert texts(act(stage, tough, "grows").one()) == [str(before)]
        if not stage.do(lambda: tough.instances[0].is_available):
            break
    assert pid(stage, tough) != before
    (line,) = [each for each in caplog.messages if "MAX_MEMORY_MB" in each]
    assert line.startswith("tough_0_0: is restarted: it occupies ")


def test_a_cancelled_request_is_reported(stage: Stage, tough: InstanceSet, caplog: pytest.LogCaptureFixture) -> None:
    """A cancellation is visible to the model while it runs."""
    caplog.set_level(logging.INFO, "engines.models")
    waiting = act(stage, tough, "waits")
    eventually(lambda: "tough_0_0: waiting" in caplog.messages)
    stage.do(waiting.call.cancel)
    assert waiting.error().code is ErrorCode.CANCELLED


def test_what_a_model_prints_is_logged(stage: Stage, tough: InstanceSet, caplog: pytest.LogCaptureFixture) -> None:
    """Prints of the model and its child processes, and its log lines, are logged with the instance's name."""
    caplog.set_level(logging.INFO, "engines.models")
    act(stage, tough, "prints", 1).one()
    wanted = {f"tough_0_1: {line}" for line in ("a line of tough_0_1", "another", "a third")}
    eventually(lambda: wanted <= set(caplog.messages))
    (warning,) = [each for each in caplog.messages if "a warning" in each]
    assert warning.startswith("tough_0_1: a warning (") and "model.py:" in warning


def test_what_a_model_prints_without_end_waits(
    stage: Stage, tough: InstanceSet, caplog: pytest.LogCaptureFixture
) -> None:
    """The host limits how much output it reads a second and continues to serve; the model blocks on its output."""
    caplog.set_level(logging.INFO, "engines.models")
    babbling = int(texts(act(stage, tough, "babbles").one())[0])
    eventually(lambda: sum(map(len, caplog.messages)) > MAX_BYTES_A_SECOND)
    assert pid(stage, tough) == babbling
    assert pid(stage, tough, 1) != babbling
    stage.changes.clear()
    os.kill(babbling, signal.SIGKILL)
    eventually(lambda: stage.changes == ["tough_0_0", "tough_0_0"])


def test_ctrl_c_is_the_host_s(stage: Stage, tough: InstanceSet) -> None:
    """A terminal's SIGINT does not end instances."""
    before = pid(stage, tough)
    os.kill(before, signal.SIGINT)
    assert pid(stage, tough) == before


def test_stopping_leaves_nothing(stage: Stage, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The model is finalised, and no process or descriptor remains, also after a crash."""
    caplog.set_level(logging.INFO, "engines.models")
    spec = model(tmp_path / "tough", TOUGH)
    descriptors = {path.name for path in Path("/proc/self/fd").iterdir()}
    running = stage.start(spec)
    act(stage, running, "exits").error()
    last = pid(stage, running)
    stage.stop(running)
    assert "tough_0_0: finalized" in caplog.messages
    assert not Path(f"/proc/{last}").exists()
    assert {path.name for path in Path("/proc/self/fd").iterdir()} <= descriptors


def test_calls_that_wait_fail_when_it_stops(stage: Stage, tmp_path: Path) -> None:
    """A model that does not stop is killed after a timeout, together with its child processes."""
    code = """
    def execute(self, requests):
        import subprocess
        print("child", subprocess.Popen(["sleep", "60"]).pid, flush=True)
        time.sleep(60)
    """
    spec = model(tmp_path / "stuck", code)
    running = stage.start(spec, limits=ProcessLimits(stop_seconds=0.2))
    (waiting,) = stage.execute(running, request(tensor("text", ["x"])))
    own = running.processes[0].pid
    children = Path(f"/proc/{own}/task/{own}/children")
    (child,) = eventually(lambda: children.read_text().split())
    stage.stop(running)
    assert waiting.error().code is ErrorCode.UNAVAILABLE
    assert not Path(f"/proc/{own}").exists()
    eventually(lambda: not alive(int(child)))


def alive(process: int) -> bool:
    """Whether a process runs; a zombie counts as ended."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_a_process_is_waited_for_where_python_has_no_waitid(
    stage: Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without os.waitid, as on macOS before Python 3.13, the exit of a process is detected and its children are
    killed."""
    monkeypatch.delattr(os, "waitid", raising=False)
    code = """
    def execute(self, requests):
        import subprocess
        text = pb.get_input_tensor_by_name(requests[0], "text").as_numpy()[0]
        if text == b"exit":
            os._exit(3)
        child = str(subprocess.Popen(["sleep", "60"]).pid).encode()
        return [pb.InferenceResponse([pb.Tensor("text", np.array([child], object))])]
    """
    running = stage.start(model(tmp_path / "leaving", code))
    (child,) = texts(stage.ask(running, tensor("text", ["start"])))
    assert alive(int(child))
    (failing,) = stage.execute(running, request(tensor("text", ["exit"])))
    assert failing.error().message == "Stub process 'leaving_0_0' is not healthy."
    eventually(lambda: not alive(int(child)))


def test_loading_has_a_time(stage: Stage, tmp_path: Path) -> None:
    """A process that does not load within its time limit is killed."""
    spec = model(tmp_path / "slow", "def initialize(self, args):\n    time.sleep(60)")
    with pytest.raises(EngineError, match=r"'slow_0_0' has not loaded within 1 seconds"):
        stage.start(spec, limits=ProcessLimits(load_seconds=1))


def test_a_restart_that_fails_is_tried_again(stage: Stage, tmp_path: Path) -> None:
    """A failed restart is repeated, after a pause, until it succeeds."""
    code = """
    def initialize(self, args):
        fail = args["model_repository"] + "/fail"
        if os.path.exists(fail):
            os.rename(fail, fail + "ed")
            raise ValueError("not yet")

    def execute(self, requests):
        os._exit(0)
    """
    spec = model(tmp_path / "shy", code)
    running = stage.start(spec)
    stage.changes.clear()
    (spec.directory / "fail").touch()
    act(stage, running, "x").error()
    eventually(lambda: stage.changes == ["shy_0_0"] * 2)
    assert (spec.directory / "failed").exists()


def test_instances_die_with_the_host(tmp_path: Path) -> None:
    """The instances and their child processes end with the host, however it ends."""
    reply = tmp_path / "pid"
    spec = model(tmp_path / "orphan", ORPHAN.format(path=str(reply)))
    script = (
        "import asyncio\nfrom pathlib import Path\nfrom engines.instances import start\n"
        "from tests.engines.instances.stage import read\n"
        "async def main():\n"
        f"    running = await start(read(Path({str(spec.directory)!r})), infer=None, control=None, metrics=None)\n"
        "    print(running.processes[0].pid, flush=True)\n"
        "    await asyncio.sleep(60)\n"
        "asyncio.run(main())\n"
    )
    with subprocess.Popen([sys.executable, "-c", script], cwd=REPOSITORY, stdout=subprocess.PIPE, text=True) as host:
        assert host.stdout is not None
        instance = int(host.stdout.readline())
        started = int(reply.read_text())
        assert alive(instance) and alive(started)
        host.kill()
    eventually(lambda: not alive(instance) and not alive(started))


def test_times_are_measured(stage: Stage, tough: InstanceSet) -> None:
    """Each call has the times for reading its inputs, running, and writing its outputs."""
    before = time.monotonic_ns()
    answers = act(stage, tough, "pid")
    answers.wait()
    call = answers.call
    assert before <= call.started_ns <= call.first_response_ns <= time.monotonic_ns()
    assert call.compute_input_ns > 0 and call.compute_infer_ns > 0 and call.compute_output_ns > 0
    together = call.compute_input_ns + call.compute_infer_ns + call.compute_output_ns
    assert together < call.first_response_ns - call.started_ns


def test_a_virtual_environment_of_its_own(stage: Stage, tmp_path: Path) -> None:
    """The model runs in its own Python, whose packages precede the host's."""
    directory = tmp_path / "apart"
    venv.create(directory / "env", symlinks=True)
    (packages,) = (directory / "env" / "lib").glob("python3.*/site-packages")
    (packages / "only_there.py").write_text("WORD = 'there'")
    code = """
    def execute(self, requests):
        import only_there
        told = [only_there.WORD.encode(), sys.prefix.encode()]
        return [pb.InferenceResponse([pb.Tensor("text", np.array(told, object))])]
    """
    config = parameters(EXECUTION_ENV_PATH="$$TRITON_MODEL_DIRECTORY/env")
    running = stage.start(model(directory, code, config))
    assert texts(stage.ask(running, tensor("text", ["x"]))) == ["there", str(directory / "env")]
