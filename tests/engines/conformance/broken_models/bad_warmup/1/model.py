"""Fails on its warm-up."""


class TritonPythonModel:
    def execute(self, requests):
        raise ValueError("not yet warm")
