"""The APIs of language models: requests of one translated for engines of another, and replies back. Pure."""
