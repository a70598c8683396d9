"""News: what one process of a gateway has to tell all others, on this machine and on others, by a stream in Redis."""
