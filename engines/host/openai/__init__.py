"""OpenAI's API, and Anthropic's, for the language models of this host: each request is one that V2 could ask too."""
