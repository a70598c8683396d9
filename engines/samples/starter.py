"""A directory to start from: sample models, the fleet that serves them, and rules that send requests to it."""

from __future__ import annotations

from pathlib import Path

from engines.samples import repository
from engines.samples.repository import Written

_FLEET = """\
# The agents of the samples: `pointsman fleet {directory}/fleet.yaml`
version: 1
rules: rules/20-fleet.yaml
agents:
"""
_AGENT = """\
  {name}:
    host: {{model_repository: {name}}}
    models: [{models}]
"""
_FURTHER = {
    # The language model is asked by OpenAI's API; clients of V2 reach it all the same.
    "stories": "    protocol: openai\n    ready: /v2/health/ready\n",
}

_FIRST = """\
# Routes are tried from top to bottom, files in the order of their names; the first that matches wins. 20-fleet.yaml,
# between this file and 90-rest.yaml, is kept by `pointsman fleet`: an engine and a route for each agent.
version: 1
routes:
  - name: renamed
    match: {model: sum-and-difference}
    engine: language
    model: adder
"""
_REST = """\
version: 1
routes:
  - name: everything-else
    engine: language
"""


def write(directory: Path) -> list[Written]:
    """Write DIRECTORY/{language,stories,vision}, fleet.yaml and rules/; what is there already of models stays."""
    written = repository.write(directory)
    models: dict[str, list[str]] = {}
    for one in written:
        if one.why_absent is None:
            models.setdefault(one.sample.agent, []).extend(one.sample.models)
    agents = [
        _AGENT.format(name=name, models=", ".join(names)) + _FURTHER.get(name, "") for name, names in models.items()
    ]
    (directory / "rules").mkdir(parents=True, exist_ok=True)
    (directory / "fleet.yaml").write_text(_FLEET.format(directory=directory) + "".join(agents))
    (directory / "rules" / "10-first.yaml").write_text(_FIRST)
    (directory / "rules" / "90-rest.yaml").write_text(_REST)
    return written
