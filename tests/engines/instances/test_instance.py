"""The order of steps when an execution has returned."""

import asyncio
from typing import Any

from engines.core.calls import InferenceCall
from engines.core.messages import InferRequest
from engines.instances.host_requests import HostRequests
from engines.instances.instance import ProcessInstance
from engines.instances.instance_set import InstancePlan
from engines.ipc import protocol


class Channel:
    """Records the messages sent."""

    arena = None
    is_open = True

    class mapping:  # noqa: N801
        has_views = False
        freed = ()

    def __init__(self) -> None:
        self.sent: list[tuple[Any, ...]] = []

    def send(self, *message: Any) -> None:
        self.sent.append(message)


def test_the_next_batch_runs_while_answers_are_handed_over() -> None:
    """The instance gets its next batch before the responses of the last one are delivered; that batch's times are set
    by then."""

    async def run() -> None:
        instance = ProcessInstance(
            InstancePlan("m_0", "KIND_CPU"),
            HostRequests("m_0", None, None, None),  # type: ignore[arg-type]
            execution_timeout_seconds=None,
            memory_limit_bytes=None,
        )
        channel = Channel()
        instance.connect(channel, print, print)  # type: ignore[arg-type]
        instance.make_ready()
        happened: list[str] = []
        first = InferenceCall(InferRequest("m"), lambda response, is_final: happened.append("answered"))
        second = InferenceCall(InferRequest("m"), lambda response, is_final: None)

        def done() -> None:
            assert (first.compute_input_ns, first.compute_infer_ns, first.compute_output_ns) == (1, 2, 3)
            assert not first.is_over
            instance.execute([second], lambda: None)
            happened.append("done")

        instance.execute([first], done)
        instance.receive((protocol.DONE, (), 1, 1, 2, 3, 0, [(1, True, [("y", "INT32", (1,), b"1234")], None, None)]))
        assert happened == ["done", "answered"]
        assert [message[0] for message in channel.sent] == [protocol.EXECUTE, protocol.EXECUTE]

    asyncio.run(run())
