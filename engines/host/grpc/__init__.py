"""gRPC: Triton's GRPCInferenceService on the gateway's own HTTP/2."""
