"""Has no class TritonPythonModel."""
