"""The engine host: serves a Triton model repository by REST, gRPC and a metrics port.

One process, one event loop. The base modules stand here: `service` behind the fronts, `model` for a loaded version. The
fronts `rest`, `grpc` and `openai` stand above, `server` joins all. Model code runs in processes of its instances (see
`engines.instances`).
"""
