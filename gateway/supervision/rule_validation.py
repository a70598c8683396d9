"""Rules judged whole, from the disk or as texts: nothing of them is used before all of it is known to be good."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from gateway.config.rules import LoadedRules, load_rules, load_texts
from gateway.config.specs import RulesSpec
from gateway.dry_run.rule_tests import tested
from gateway.upstream.endpoint import endpoint_tls
from gateway.yaml.problems import Location, Problem


def judge_files(paths: Sequence[Path]) -> LoadedRules:
    """The rules of files on disk, as the gateway would serve by them; none where they have a mistake."""
    return judged(load_rules(paths))


def judge_texts(texts: Mapping[str, str]) -> LoadedRules:
    """The same of texts, whose names are those of the files that they would be."""
    return judged(load_texts(texts))


def judged(loaded: LoadedRules) -> LoadedRules:
    """What has been read, with what only those who serve by it would find."""
    if loaded.rules is None:
        return loaded
    found = unusable_files(loaded.rules)
    if not found:
        return tested(loaded)
    return replace(loaded, rules=None, problems=(*loaded.problems, *found))


def unusable_files(rules: RulesSpec) -> list[Problem]:
    """What is wrong with the certificate files that the rules name: workers would refuse the rules for it."""
    found = []
    for name, engine in rules.engines.items():
        for endpoint in engine.endpoints:
            try:
                endpoint_tls(engine.tls, endpoint.url)
            except OSError as error:  # ssl.SSLError is one
                place = engine.location or Location("rules", 1, 1)
                found.append(Problem(place, f"the TLS files of engine '{name}' cannot be used: {error}"))
                break
    return found
