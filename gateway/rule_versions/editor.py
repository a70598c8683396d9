"""Edits of rule files by name: an arm's weight, an engine's endpoint, a limit's amount. All other lines stay.

Each edit returns the texts by file name. A value from `${VAR}` or shared by an anchor is not edited: the message says
what to do instead (EditError). The caller validates the result.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, MutableMapping

from gateway.config.value_parsers import endpoint_url
from gateway.rule_versions.splice import (
    Span,
    append_item,
    check_own,
    flow_map,
    read_spans,
    remove_entry,
    remove_item,
    set_entry,
    written,
)
from gateway.rule_versions.version import EditError
from gateway.yaml.nodes import substitute
from gateway.yaml.problems import suggest

# The rule files as they are written, by name, in their order.
RuleTexts = MutableMapping[str, str]
Edit = Callable[[RuleTexts], None]

LIMIT_FIELDS = ("requests_per_second", "burst", "tokens_per_minute", "concurrency", "max_wait")


def set_weights(texts: RuleTexts, experiment: str, weights: Mapping[str, float]) -> None:
    """Set weights of an experiment's arms; others keep theirs."""
    for arm, weight in weights.items():
        file, text, found = _named(texts, "experiments", experiment)
        one = _arm(text, found, experiment, arm)
        texts[file] = set_entry(text, one, "weight", weight, f"the weight of arm '{arm}'")


def add_endpoint(texts: RuleTexts, engine: str, url: str, grpc: str | None = None, weight: float | None = None) -> None:
    """Put one more endpoint at the end of an engine's list."""
    file, text, found = _named(texts, "engines", engine)
    endpoints = _endpoints(text, found, engine)
    if any(_address(each) == _plain_url(url) for each in _items(endpoints)):
        raise EditError(f"engine '{engine}' has an endpoint {url} already")
    item = written(url) if grpc is None and weight is None else flow_map(url=url, grpc=grpc, weight=weight)
    if endpoints.kind == "list":
        texts[file] = append_item(text, endpoints, item)
    elif endpoints.kind == "scalar" or endpoints.is_flow:  # one, written without a list around it
        one = text[endpoints.start : endpoints.end]
        texts[file] = text[: endpoints.start] + f"[{_in_flow(endpoints, one)}, {item}]" + text[endpoints.end :]
    else:
        raise EditError(f"the endpoint of engine '{engine}' is not written as a list: write '- ' before it first")


def remove_endpoint(texts: RuleTexts, engine: str, url: str) -> None:
    """Take an endpoint out of an engine's list."""
    file, text, found = _named(texts, "engines", engine)
    endpoints = _endpoints(text, found, engine)
    at = _endpoint(endpoints, engine, url)
    if endpoints.kind != "list" or len(endpoints.children) == 1:
        raise EditError(f"{url} is the only endpoint of engine '{engine}': add another one before it goes")
    texts[file] = remove_item(text, endpoints, at, f"endpoint {url}")


def set_endpoint_weight(texts: RuleTexts, engine: str, url: str, weight: float) -> None:
    """Give an endpoint another weight among those of its engine."""
    file, text, found = _named(texts, "engines", engine)
    endpoints = _endpoints(text, found, engine)
    one = _items(endpoints)[_endpoint(endpoints, engine, url)]
    what = f"the weight of endpoint {url}"
    check_own(text, one, what)
    if one.kind == "map":
        texts[file] = set_entry(text, one, "weight", weight, what)
        return
    address = _in_flow(one, text[one.start : one.end])
    texts[file] = text[: one.start] + f"{{url: {address}, weight: {written(weight)}}}" + text[one.end :]


def set_limit(texts: RuleTexts, name: str, field: str, value: float | str | None) -> None:
    """Give a limit another amount; None takes the field out."""
    if field not in LIMIT_FIELDS:
        raise EditError(f"a limit has no amount {field!r}{suggest(field, LIMIT_FIELDS)}")
    known: list[str] = []
    for file, text in list(texts.items()):
        section = read_spans(text, file).get("limits")
        for one in section.children if section is not None and section.kind == "list" else ():
            its = one.get("name")
            known += [its.value] if its is not None else []
            if its is not None and its.value == name:
                what = f"'{field}' of limit '{name}'"
                check_own(text, one, what)
                changed = remove_entry(text, one, field, what)
                texts[file] = changed if value is None else set_entry(text, one, field, value, what)
                return
    raise EditError(f"there is no limit '{name}'{suggest(name, known)}")


# Finding


def _named(texts: RuleTexts, section: str, name: str) -> tuple[str, str, Span]:
    """The file and text that contain this name in this section, and its node."""
    kind = section.removesuffix("s")
    known: list[str] = []
    for file, text in list(texts.items()):
        found = read_spans(text, file).get(section)
        if found is None or found.kind != "map":
            continue
        known += [key.value for key, _ in found.pairs()]
        one = found.get(name)
        if one is not None:
            check_own(text, found, f"the section '{section}'")
            check_own(text, one, f"{kind} '{name}'")
            return file, text, one
    raise EditError(f"there is no {kind} '{name}'{suggest(name, known)}")


def _list_of(text: str, owner: Span, field: str, what: str) -> Span:
    found = owner.get(field)
    if found is None:
        raise EditError(f"the {field} of {what} come from elsewhere ('<<'): write them in their own place first")
    check_own(text, found, f"the {field} of {what}")
    return found


def _arm(text: str, experiment: Span, name: str, arm: str) -> Span:
    arms = _list_of(text, experiment, "arms", f"experiment '{name}'").children
    named = {its.value: one for one in arms if (its := one.get("name")) is not None}
    if arm not in named:
        raise EditError(f"experiment '{name}' has no arm '{arm}'{suggest(arm, named)}")
    check_own(text, named[arm], f"arm '{arm}'")
    return named[arm]


def _endpoints(text: str, engine: Span, name: str) -> Span:
    return _list_of(text, engine, "endpoints", f"engine '{name}'")


def _items(endpoints: Span) -> list[Span]:
    return endpoints.children if endpoints.kind == "list" else [endpoints]


def _endpoint(endpoints: Span, engine: str, url: str) -> int:
    """The index of an endpoint in its engine's list."""
    addresses = [_address(one) for one in _items(endpoints)]
    if _plain_url(url) not in addresses:
        known = ", ".join(address for address in addresses if address)
        raise EditError(f"engine '{engine}' has no endpoint {url}; it has {known}")
    return addresses.index(_plain_url(url))


def _address(endpoint: Span) -> str | None:
    """The URL with environment variables filled in; None if it is not in the file."""
    url = endpoint.get("url") if endpoint.kind == "map" else endpoint
    if url is None or url.kind != "scalar":
        return None
    try:
        return endpoint_url(substitute(url.value, os.environ))
    except ValueError:
        return None


def _plain_url(url: str) -> str:
    try:
        return endpoint_url(url)
    except ValueError as error:
        raise EditError(str(error)) from error


def _in_flow(scalar: Span, one: str) -> str:
    """A scalar quoted for flow style, where more characters are special."""
    if scalar.kind == "scalar" and scalar.is_plain:
        return '"' + one.replace("\\", "\\\\").replace('"', '\\"') + '"'
    return one
