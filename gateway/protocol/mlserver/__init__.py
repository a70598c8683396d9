"""MLServer's API of V2, where it is another than Triton's.

    ModelStreamInfer   answers ModelInferResponse, not ModelStreamInferResponse, on the same path: another message.
                       What fails ends the stream with a status; all messages go to the first one's model
    generate           takes infer's JSON, and answers it; so does generate_stream (and infer_stream, its first name),
                       with an event for each response
    infer              knows no binary tensors, and reads a body only where its content type is application/json
    errors             {"detail": ...} besides {"error": "..."}; 422 where Triton has 400; where a stream fails, 200 and
                       a connection that ends amid the body, or 500 where nothing was sent yet, a 404 among it

Source: MLServer 1.7.1 `grpc/servicers.py`, `rest/app.py`, `rest/endpoints.py`; tried against a real one
(tests/protocol/mlserver).
"""
