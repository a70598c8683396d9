"""REST: Triton's HTTP protocol."""
