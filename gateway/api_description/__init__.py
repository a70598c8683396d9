"""The inference API as an OpenAPI document, from the tables of the code."""
