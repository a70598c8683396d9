"""The demo's language model: a corpus of small stories, a tokenizer, a network, and the folder that holds them."""
