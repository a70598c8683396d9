"""The fleet as one table: a line for each agent."""

from __future__ import annotations

from collections.abc import Iterable

from rich.table import Table
from rich.text import Text

from engines.fleet.agent import Agent
from engines.fleet.health_state import AgentState

_COLOURS = {
    AgentState.READY: "green",
    AgentState.STARTING: "cyan",
    AgentState.UNREADY: "yellow",
    AgentState.SILENT: "yellow",
    AgentState.WAITING: "red",
    AgentState.STOPPING: "dim",
    AgentState.STOPPED: "dim",
}
_COLUMNS = ("agent", "state", "for", "pid", "ports", "memory", "power", "restarts")


def state_table(agents: Iterable[Agent], now: float) -> Table:
    """The states at a loop time of `now`."""
    table = Table(*_COLUMNS)
    for agent in agents:
        table.add_row(
            Text(agent.spec.name),
            Text(agent.state.value, style=_COLOURS[agent.state]),
            _span(now - agent.since),
            str(agent.pid or "-"),
            Text(" ".join(f"{name}:{port}" for name, port in agent.ports.items()) or "-"),
            _memory(agent),
            agent.spec.power.value,
            str(agent.restarts),
        )
    return table


def _memory(agent: Agent) -> Text:
    budget = agent.spec.memory_bytes
    taken = f"{agent.memory_bytes / 2**20:,.0f}" if agent.memory_bytes else "-"
    if budget is None:
        return Text(f"{taken} MiB")
    is_near = agent.memory_bytes > 0.9 * budget
    return Text(f"{taken} of {budget / 2**20:,.0f} MiB", style="red" if is_near else "")


def _span(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h{minutes:02}m" if hours else f"{minutes}m{rest:02}s" if minutes else f"{rest}s"
