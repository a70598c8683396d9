"""Which handler answers a request."""
