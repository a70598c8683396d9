"""Versions of the rules: what each is, where they are kept, and how rule files are edited without disturbing them."""
