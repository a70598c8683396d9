"""Versions of the rules: their store, and edits of rule files that preserve all other bytes."""
