"""V2 in front of TF Serving: its REST and its gRPC, both ways, as pure functions. Nothing is lost on the way: what TF
Serving has no place for is refused by name.

    inference      one V2 inference -> predict, classify or regress, by REST or by gRPC; the reply -> a V2 response
    infer_request  its part for TF Serving: tensors, method, signature, version or label
    model_info     a model's name, signatures and state at TF Serving -> V2 metadata, config, readiness
    predict        the JSON of predict;  examples  of classify and regress;  json_tensors  a tensor in it
    rpcs           the calls of its gRPC and a tensor there;  messages  their schemas and datatypes

Source: TF Serving `g3doc/api_rest.md`, `util/json_tensor.cc`, `apis/*.proto`; TensorFlow `framework/tensor.proto`,
`framework/types.proto`, `protobuf/meta_graph.proto`, `example/example.proto`.
"""
