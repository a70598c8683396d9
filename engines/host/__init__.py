"""The host: an unchanged Triton model repository behind REST, gRPC and a metrics port.

One process, one event loop. `server` wires the parts; `service` is what the fronts speak to; `model` is a version that
serves. No model code runs here: instances live in processes of their own (see `engines.instances`).
"""
