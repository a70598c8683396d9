"""The dialects of language models: what a client of one asks, as an engine of another reads it, and back. Pure."""
