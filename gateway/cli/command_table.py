"""The commands of `pointsman`, and where each is: a command imports its own modules alone."""

from __future__ import annotations

from typing import NamedTuple

GATEWAY, RULES, FLEET = "The gateway", "Rules and traffic", "A running gateway"
PROGRAM_PANEL = "Engines and this machine"


class CommandEntry(NamedTuple):
    """A function of a module of this package, or a group of commands there; `needs_name`: the group shows its help
    where no command of it is named. `has_sources`: its options come from variables and settings files, too."""

    panel: str
    module: str
    attribute: str
    needs_name: bool = True
    has_sources: bool = False


# In the order of `--help`.
COMMANDS = {
    "up": CommandEntry(GATEWAY, "up", "up"),
    "serve": CommandEntry(GATEWAY, "serve", "serve", has_sources=True),
    "epp": CommandEntry(GATEWAY, "epp", "epp", has_sources=True),
    "check": CommandEntry(RULES, "check", "check"),
    "explain": CommandEntry(RULES, "explain", "explain"),
    "replay": CommandEntry(RULES, "recordings", "replay"),
    "engines": CommandEntry(FLEET, "engines", "engines"),
    "drain": CommandEntry(FLEET, "engines", "drain"),
    "models": CommandEntry(FLEET, "engines", "models"),
    "load": CommandEntry(FLEET, "engines", "load"),
    "unload": CommandEntry(FLEET, "engines", "unload"),
    "engine-settings": CommandEntry(FLEET, "engine_settings", "engine_settings"),
    "requests": CommandEntry(FLEET, "operator_commands", "requests"),
    "cancel": CommandEntry(FLEET, "operator_commands", "cancel"),
    "log-level": CommandEntry(FLEET, "operator_commands", "log_level"),
    "audit": CommandEntry(FLEET, "operator_commands", "audit"),
    "page": CommandEntry(FLEET, "operator_commands", "page"),
    "openapi": CommandEntry(PROGRAM_PANEL, "openapi", "openapi"),
    "doctor": CommandEntry(PROGRAM_PANEL, "doctor", "doctor"),
}
GROUPS = {
    "experiments": CommandEntry(FLEET, "experiments", "app", needs_name=False),
    "limits": CommandEntry(FLEET, "operator_commands", "limits", needs_name=False),
    "budgets": CommandEntry(FLEET, "operator_commands", "budgets", needs_name=False),
    "endpoints": CommandEntry(FLEET, "engines", "endpoints"),
    "conversations": CommandEntry(FLEET, "conversations", "app"),
    "keys": CommandEntry(GATEWAY, "keys", "app"),
    "shadow": CommandEntry(FLEET, "shadow", "app"),
    "rules": CommandEntry(RULES, "rules", "app"),
    "service": CommandEntry(GATEWAY, "service", "app"),
    "recordings": CommandEntry(RULES, "recordings", "app"),
}
# The engines: separate programs, `python -m engines NAME`, offered by the one command line.
PROGRAMS = {
    "host": "Serve a Triton model repository, on a Mac, CPU or CUDA: REST, gRPC and metrics.",
    "llm": "Serve a language model from its folder: OpenAI's API, Triton's V2, gRPC, metrics.",
    "fleet": "Start and supervise engine hosts and other engines from a YAML file, and register them with the gateway.",
    "samples": "Write sample models that run here, a fleet file that serves them, and rules for the gateway.",
    "analyze": "Find the best batch size, instances and delay for a model, under real load.",
    "convert": "Turn a PyTorch or ONNX model into a CoreML package in a model repository.",
}
