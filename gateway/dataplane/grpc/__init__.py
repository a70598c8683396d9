"""The gRPC front: calls on HTTP/2 streams, from their first fields to their trailers."""
