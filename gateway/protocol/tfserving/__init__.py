"""V2 in front of TF Serving: its REST and its gRPC, both ways, as pure functions. Nothing is lost on the way: what TF
Serving has no place for is refused by name.

    inference   one V2 inference -> predict, classify or regress, by REST or by gRPC; the reply -> a V2 response
    asked       what of it is meant for TF Serving: tensors, method, signature, version or label
    served      a model's signatures and state, as TF Serving tells them -> V2 metadata, config, readiness
    targets     a model as TF Serving names it: version or label
    predict     the JSON of predict;  examples  the same of classify and regress;  json_tensors  a tensor in it
    rpcs        the messages of its gRPC;  tensor_proto  a tensor there;  messages  their schemas

Source: TF Serving `g3doc/api_rest.md`, `util/json_tensor.cc`, `apis/*.proto`; TensorFlow `framework/tensor.proto`,
`framework/types.proto`, `protobuf/meta_graph.proto`, `example/example.proto`.
"""
