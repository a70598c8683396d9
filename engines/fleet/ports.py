"""Free ports for agents, the same ones after a restart."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from engines.fleet.spec import AgentSpec
from gateway.net import sockets

IsFree = Callable[[int], bool]


class NoFreePortError(Exception):
    """The range of ports is exhausted."""


def allot(
    agents: Iterable[AgentSpec], port_range: tuple[int, int], is_free: IsFree, previous: Mapping[str, Mapping[str, int]]
) -> dict[str, dict[str, int]]:
    """Ports for each agent, by the agent's name and the port's name. An agent keeps its port in `previous` where that
    is free; `is_free` need not consider the ports allotted here. Raises: NoFreePortError."""
    agents = list(agents)
    taken = {port for agent in agents for port in agent.fixed_ports.values()}
    allotted: dict[str, dict[str, int]] = {agent.name: dict(agent.fixed_ports) for agent in agents}
    wanted = [(agent, port) for agent in agents for port in agent.ports if port not in agent.fixed_ports]
    for agent, name in wanted:
        before = previous.get(agent.name, {}).get(name)
        if before is not None and before not in taken and is_free(before):
            allotted[agent.name][name] = before
            taken.add(before)
    first, last = port_range
    candidates = iter(range(first, last + 1))
    for agent, name in wanted:
        if name in allotted[agent.name]:
            continue
        port = next((port for port in candidates if port not in taken and is_free(port)), None)
        if port is None:
            raise NoFreePortError(f"no port from {first} to {last} is free for agent {agent.name!r}: widen 'ports'")
        allotted[agent.name][name] = port
        taken.add(port)
    return allotted


def can_bind(address: str, port: int) -> bool:
    """Whether a server can listen there now."""
    try:
        with sockets.bind(address, port) as probe:
            probe.listen()
    except OSError:
        return False
    return True
