"""The directory that `pointsman samples` and the demo write and start from."""

from pathlib import Path

from engines.fleet.config import load_fleet
from engines.fleet.spec import Power
from engines.samples import repository


def test_sample_agents_have_the_machine_s_full_power(tmp_path: Path) -> None:
    """Sample agents do not run at background power: on a Mac that throttles CPU and disk so much that imports seem to
    hang."""
    repository.write(tmp_path)
    agents = load_fleet(tmp_path / "fleet.yaml").fleet.agents
    assert agents and {agent.power for agent in agents} == {Power.DEFAULT}
