"""Cannot be imported."""

import no_such_module  # noqa: F401


class TritonPythonModel:
    def execute(self, requests):
        return []
