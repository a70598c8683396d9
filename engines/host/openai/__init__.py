"""OpenAI's API, and Anthropic's, for this host's language models, by inferences that V2 could express too."""
