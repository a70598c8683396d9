"""Requests to language models: whose body names the model, whose tokens are counted, which may go on elsewhere."""
