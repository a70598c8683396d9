"""REST: Triton's HTTP protocol as an ASGI application."""
