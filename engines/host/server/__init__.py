"""A host process: its parts joined, its event loop, signals and ready file."""
