"""Every control RPC as a function: request message in, response message out, EngineError where it refuses."""
