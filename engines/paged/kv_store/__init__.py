"""Blocks of keys and values that outlive an engine: written behind, and read where that is cheaper than prefill."""
