"""HTTP/2 without input or output: frames, header compression, streams and their windows (RFC 9113, RFC 7541)."""
