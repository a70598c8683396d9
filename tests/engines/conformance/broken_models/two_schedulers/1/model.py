"""A working model whose config.pbtxt prevents loading."""


class TritonPythonModel:
    def execute(self, requests):
        return []
