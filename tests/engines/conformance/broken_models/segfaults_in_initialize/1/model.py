"""Crashes in initialize."""

import ctypes


class TritonPythonModel:
    def initialize(self, args):
        ctypes.string_at(0)

    def execute(self, requests):
        return []
