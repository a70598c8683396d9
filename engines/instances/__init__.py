"""Model instances in their own processes: `await start(spec, ...)` runs them."""

from engines.instances.host_requests import CustomMetricsInterface, ModelControl
from engines.instances.instance_set import InstanceSet, start
from engines.instances.model_process import ProcessLimits

__all__ = ["CustomMetricsInterface", "InstanceSet", "ModelControl", "ProcessLimits", "start"]
