"""Stored conversations, so that a client sends only its new message: turns, retention limits, Redis."""
