"""Raises TritonModelException in initialize."""

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        raise pb_utils.TritonModelException("cannot begin")

    def execute(self, requests):
        return []
