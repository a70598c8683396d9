"""gRPC: Triton's GRPCInferenceService on the gateway's HTTP/2."""
