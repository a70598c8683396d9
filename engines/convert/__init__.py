"""Conversion of torch and ONNX models to CoreML packages that stand ready in a model repository.

Conversion itself works on Linux too; only a Mac can run what comes out of it, and so compare it with the source.
"""
