"""Where client and engine do not speak the same: REST on HTTP/2, gRPC to an engine with REST alone, and the reverse.

Whoever answers is the same as without a bridge: what is here stands in for the client that it knows.
"""
