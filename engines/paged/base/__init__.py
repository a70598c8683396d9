"""Values and helpers that every other package of the engine may use."""
