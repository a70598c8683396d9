"""Raises ValueError in initialize."""


class TritonPythonModel:
    def initialize(self, args):
        raise ValueError("raised in initialize")

    def execute(self, requests):
        return []
