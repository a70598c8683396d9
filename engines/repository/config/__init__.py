"""Model configurations (config.pbtxt): read, completed with Triton's defaults, and checked.

In the order of a model's configuration:

    parser      text or JSON -> an `inference.ModelConfig` message
    defaults    the backend and the model's file name, from the platform or from the files; Triton's defaults
    checks      Triton's errors; `tensors`, `sequences` and `ensembles` are parts of it
"""

from engines.repository.config.checks import check, check_instance_groups
from engines.repository.config.defaults import complete_backend, set_defaults, set_instance_groups
from engines.repository.config.parser import ConfigError, line_of, read, read_json
from engines.repository.config.tensors import check_tensors

__all__ = [
    "ConfigError",
    "check",
    "check_instance_groups",
    "check_tensors",
    "complete_backend",
    "line_of",
    "read",
    "read_json",
    "set_defaults",
    "set_instance_groups",
]
