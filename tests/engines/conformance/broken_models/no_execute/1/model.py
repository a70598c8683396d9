"""Has no function execute."""


class TritonPythonModel:
    def initialize(self, args):
        pass
