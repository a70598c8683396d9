"""The same request, by REST or by gRPC: bytes of one protocol in, bytes of the other out.

Every function is pure, and nothing is lost on the way: what one protocol has no place for is refused with a clear
error.
"""
