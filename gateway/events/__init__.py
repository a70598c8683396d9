"""Events between all processes of all gateways that share a Redis, by a stream."""
