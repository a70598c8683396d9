"""Engines of language models for these tests."""

from tests.llm.fleet import fleet
from tests.support.llm import canned, canned_process, canned_v2, canned_v2_process, real_llms, start_canned

__all__ = ["canned", "canned_process", "canned_v2", "canned_v2_process", "fleet", "real_llms", "start_canned"]
