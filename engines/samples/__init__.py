"""Models to try the engine host with: `repository.write` makes a model repository of those that can run here."""
