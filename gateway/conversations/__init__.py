"""Conversations that the gateway keeps, so that a client sends only what is new: turns, their limits, Redis."""
