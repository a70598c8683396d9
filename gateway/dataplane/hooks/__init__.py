"""Routes with Python hooks: `HookedHandler` stands between the client and the handlers of REST."""
