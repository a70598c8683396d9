"""How a request reaches an engine: endpoint, deadline, retries, circuit breaker, replay."""
