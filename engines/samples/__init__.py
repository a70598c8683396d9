"""Sample models for the engine host: `repository.write` copies those that run on this machine."""
