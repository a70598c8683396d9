"""A worker whose behaviour a test selects: `scripted_worker.py MODE NOTES --control-fd N`. It notes the messages it
receives.

It serves no port. The modes:

    good        serves, counts one request, ends on a drain message
    dies        ends with status 3 before it serves
    once        serves the first time; then two successors die before one serves
    slow        reads messages, but does not serve; ends on a drain message
    silent      serves, but answers no query
    late        serves, but uses rules after 0.3 s
    frail       serves, and dies when it is asked about its rules
    stubborn    serves, but does not drain
"""

import pickle
import signal
import socket
import sys
import time
from pathlib import Path

from gateway.control.channel import encode
from gateway.control.messages import (
    AwaitRules,
    Drain,
    GetCounters,
    Message,
    Ping,
    Query,
    QueryReply,
    Serving,
    SetHealth,
    SetLogLevel,
    SetUnready,
    SetWeights,
    Start,
    UpdateHealth,
    UseRules,
)
from gateway.observability.metrics import CountersSnapshot, Metrics, SeriesKey


def counted() -> CountersSnapshot:
    """One answered request and one in flight."""
    metrics = Metrics()
    series = metrics.series(SeriesKey("all", "", "it", "http://127.0.0.1:1"))
    series.count(200, 0.1, 0.1, 0.1)
    series.in_flight = 1
    return CountersSnapshot(metrics.by_key, connections=1)


def note(notes: Path, line: str) -> None:
    with notes.open("a") as file:
        file.write(line + "\n")


def obey(message: Message, mode: str, notes: Path, control: socket.socket) -> None:
    if isinstance(message, Start):
        note(notes, f"start {message.number}")
        for setting in message.state:
            obey(setting, mode, notes, control)
        starts = notes.read_text().count("start ")
        if mode == "dies" or (mode == "once" and starts in (2, 3)):
            sys.exit(3)
        if mode != "slow":
            control.sendall(encode(Serving()))
    elif isinstance(message, SetHealth):
        health = sorted(state.value for state in message.health.values())
        note(notes, f"health {health} models {sorted(name for of in message.models.values() for name in of.names)}")
    elif isinstance(message, UpdateHealth):
        conditions = [None if state is None else state.value for state in message.health.values()]
        models = sorted(name for of in message.models.values() if of is not None for name in of.names)
        loads = [load.running for load in message.loads.values() if load is not None]
        note(notes, f"changed {conditions} models {models} loads {loads}")
    elif isinstance(message, SetLogLevel):
        note(notes, f"level {message.level}")
    elif isinstance(message, SetUnready):
        note(notes, "unready")
    elif isinstance(message, SetWeights):
        note(notes, f"weights {dict(message.weights)}")
    elif isinstance(message, UseRules):
        note(notes, f"rules {message.number}")
    elif isinstance(message, Query) and isinstance(message.request, GetCounters) and mode != "silent":
        control.sendall(encode(QueryReply(message.token, counted())))
    elif isinstance(message, Query) and isinstance(message.request, AwaitRules) and mode != "silent":
        if mode == "frail":
            sys.exit(4)
        if mode == "late":
            time.sleep(0.3)
        note(notes, "used")
        control.sendall(encode(QueryReply(message.token, None)))
    elif isinstance(message, Query) and isinstance(message.request, Ping) and mode != "silent":
        control.sendall(encode(QueryReply(message.token, None)))
    elif isinstance(message, Drain):
        note(notes, "drain")
        if mode != "stubborn":
            sys.exit(0)


def main() -> None:
    mode, notes, _, descriptor = sys.argv[1:]
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    control = socket.socket(fileno=int(descriptor))
    received = control.makefile("rb")
    while head := received.read(4):
        obey(pickle.loads(received.read(int.from_bytes(head, "big"))), mode, Path(notes), control)


if __name__ == "__main__":
    main()
