"""The documentation as a static site, from the pages of the repository."""
