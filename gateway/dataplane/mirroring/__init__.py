"""Requests of routes with a shadow, and their answers, copied as they pass and handed to the shadow process."""
