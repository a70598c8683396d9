"""The report of a mirrored route as one self-contained HTML page."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from html import escape
from pathlib import Path
from typing import Any

from gateway.admin.plots import figure, histogram, stacked_bar

Json = Mapping[str, Any]

_OUTCOMES = [
    ("agree", "agreeing", "good"),
    ("differ", "differing", "bad"),
    ("only the candidate failed", "candidate_failed", "worse"),
    ("only the primary failed", "primary_failed", "odd"),
    ("both failed", "both_failed", "none"),
]
_OF_TENSORS = [
    ("max_absolute", "largest absolute error", False),
    ("max_relative", "largest relative error", False),
    ("mean_absolute", "mean absolute error", False),
    ("cosine_distance", "1 - cosine", False),
    ("argmax", "same argmax (share of rows)", True),
    ("top_k", "same top k (share)", True),
]
_OF_TEXTS = [
    ("prefix_share", "equal from the begin (share)", True),
    ("first_token", "first token that differs", False),
    ("first_character", "first character that differs", False),
    ("primary_tokens", "tokens, primary", False),
    ("candidate_tokens", "tokens, candidate", False),
]
_QUANTILES = ("least", "mean", "p50", "p90", "p99", "most")

_STYLE = Path(__file__).with_name("shadow_report.css")


def page_of(report: Json) -> str:
    """The page; everything from outside is escaped."""
    shadow = report["shadow"]
    title = f"Shadow report of {report['route']}"
    primaries = ", ".join(report["primary_engines"]) or "its own engine"
    parts = [
        f"<h1>{escape(title)}</h1>",
        f"<p>{escape(primaries)} against <b>{escape(shadow['engine'])}</b>{_model(shadow)}. {_since(report)}</p>",
        _summary(report),
        _latency(report["latency"]),
        *(_output(name, each, _OF_TENSORS, "tensor") for name, each in report["tensors"].items()),
        *(_output(name, each, _OF_TEXTS, "text") for name, each in report["texts"].items()),
        _entries(
            "Which differ most",
            ("request", "when", "model", "request", "difference"),
            map(_worst, report["worst"]),
        ),
        _entries("Last failures", ("request", "when", "who", "why"), map(_failure, report["failures"])),
        _counted("Not mirrored", "reason", report["dropped"]),
        _counted("Statuses (primary/candidate)", "statuses", report["statuses"]),
    ]
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{_STYLE.read_text()}</style></head><body><main>{''.join(parts)}</main></body></html>"
    )


def _model(shadow: Json) -> str:
    return f", model <b>{escape(shadow['model'])}</b>" if shadow["model"] else ""


def _since(report: Json) -> str:
    if not report["since"]:
        return "No request has been mirrored yet."
    until = f" to {_time(report['updated'])}" if report["updated"] else ""
    active = "" if report.get("active", True) else " The route is mirrored no more."
    return f"From {_time(report['since'])}{until}.{active}"


def _summary(report: Json) -> str:
    agreement = report["agreement"]
    shadow, tolerance = report["shadow"], report["shadow"]["tolerance"]
    tiles = [
        ("agree", "-" if agreement is None else f"{agreement:.2%}"),
        ("compared", f"{report['compared']:,}"),
        ("mirrored", f"{report['mirrored']:,}"),
        ("sample", f"{shadow['sample']:.4g}"),
        ("tolerance", f"{tolerance['absolute']:g} abs. or {tolerance['relative']:g} rel."),
    ]
    cells = "".join(f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>" for name, value in tiles)
    bar = stacked_bar([(name, report[key], kind) for name, key, kind in _OUTCOMES], "Outcomes of all mirrored requests")
    legend = "".join(
        f'<li><i class="{kind}"></i>{escape(name)} {report[key]:,}</li>' for name, key, kind in _OUTCOMES if report[key]
    )
    return f'<dl class="tiles">{cells}</dl>{bar}<ul class="legend">{legend}</ul>'


def _latency(latency: Json) -> str:
    if not latency["primary"]["count"]:
        return ""
    plots: list[str] = []
    for what, ours, theirs in (
        ("whole answer", "primary", "candidate"),
        ("first byte", "primary_first", "candidate_first"),
    ):
        rows = [("primary", latency[ours]["bins"], "one"), ("candidate", latency[theirs]["bins"], "other")]
        plots.append(f"<figure><figcaption>{what}</figcaption>{histogram(rows, f'Latency, {what}', ' s')}</figure>")
    table = _quantiles([(name.replace("_", ", "), latency[name]) for name in latency], "seconds")
    return f'<section><h2>Latency</h2><div class="plots">{"".join(plots)}</div>{table}</section>'


def _output(name: str, output: Json, fields: Sequence[tuple[str, str, bool]], kind: str) -> str:
    """One output: its counts, its distributions, and plots of those with more than one bin."""
    filled = [(key, what, is_share) for key, what, is_share in fields if output[key]["count"]]
    plots = "".join(
        f"<figure><figcaption>{escape(what)}</figcaption>"
        f"{histogram([('', output[key]['bins'], 'one')], what, is_share=is_share)}</figure>"
        for key, what, is_share in filled
        if len(output[key]["bins"]) > 1 or key == fields[0][0]
    )
    notes = [f"{output['agreeing']:,} of {output['compared']:,} agree"]
    notes += [f"{number:,} times: {problem}" for problem, number in output["problems"].items()]
    notes += [f"{number:,} ended as {pair}" for pair, number in output.get("finishes", {}).items()]
    for key, what in (
        ("outside", "elements beyond the tolerance"),
        ("nonfinite", "elements NaN or infinite on one side"),
        ("calls_differ", "with other tool calls"),
    ):
        if output.get(key):
            notes.append(f"{output[key]:,} {what}")
    table = _quantiles([(what, output[key]) for key, what, _ in filled], "")
    summary = "; ".join(map(escape, notes))
    title = f"<h2>{escape(name)} <small>{kind}</small></h2><p>{summary}.</p>"
    return f'<section>{title}{table}<div class="plots">{plots}</div></section>'


def _quantiles(rows: Iterable[tuple[str, Json]], unit: str) -> str:
    head = "".join(f"<th>{name}</th>" for name in ("count", *_QUANTILES))
    body = "".join(
        f"<tr><th>{escape(what)}</th><td>{quantiles['count']:,}</td>"
        + "".join(f"<td>{figure(quantiles[name])}</td>" for name in _QUANTILES)
        + "</tr>"
        for what, quantiles in rows
        if quantiles["count"]
    )
    return f'<div class="wide"><table><thead><tr><th>{unit}</th>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def _entries(title: str, head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table of requests; its cells are HTML."""
    body = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>" for row in rows)
    names = "".join(f"<th>{name}</th>" for name in head)
    return body and (
        f'<section><h2>{title}</h2><div class="wide"><table class="texts"><thead><tr>{names}</tr></thead>'
        f"<tbody>{body}</tbody></table></div></section>"
    )


def _worst(entry: Json) -> Sequence[str]:
    differences = "<br>".join(_difference(each) for each in entry["outputs"])
    return escape(entry["request_id"]), _time(entry["time"]), escape(entry["model"]), _inputs(entry), differences


def _inputs(entry: Json) -> str:
    lines = [f"{each['name']} {each['datatype']} {list(each['shape'])}" for each in entry["inputs"]]
    lines.append(f"{entry['bytes']:,} bytes, SHA-256 {entry['digest']}…")
    excerpt = f"<pre>{escape(entry['excerpt'])}</pre>" if entry.get("excerpt") else ""
    return "<br>".join(map(escape, lines)) + excerpt


def _difference(each: Json) -> str:
    name = f"<b>{escape(each['name'])}</b>: "
    if each["problem"] and not each.get("index"):
        return name + escape(each["problem"])
    if "index" in each:
        where = f"at {list(each['index'])} {figure(each['primary'])} became {figure(each['candidate'])}"
        errors = f"largest error {figure(each['max_absolute'])} ({figure(each['max_relative'])} relative)"
        problem = f"{each['problem']}; " if each["problem"] else ""
        return name + escape(f"{problem}{where}; {errors}; {each['outside']} of {list(each['shape'])} outside")
    notes = []
    if each["first_character"] is not None:
        token = "" if each["first_token"] is None else f", token {each['first_token']}"
        notes.append(f"part at character {each['first_character']}{token}; {each['prefix_share']:.0%} equal before")
    if each["finishes"][0] != each["finishes"][1]:
        notes.append(f"ended by {each['finishes'][0] or 'nothing'} and by {each['finishes'][1] or 'nothing'}")
    if each["calls_differ"]:
        notes.append("other tool calls")
    around = "".join(f"<pre>{escape(text)}</pre>" for text in each.get("around", ()))
    return name + escape("; ".join(notes)) + around


def _failure(entry: Json) -> Sequence[str]:
    who, why = escape(entry["outcome"].replace("_", " ")), escape(entry["reason"])
    return escape(entry["request_id"]), _time(entry["time"]), who, why


def _counted(title: str, what: str, counts: Mapping[str, int]) -> str:
    if not counts:
        return ""
    rows = "".join(f"<tr><th>{escape(name)}</th><td>{number:,}</td></tr>" for name, number in counts.items())
    head = f"<tr><th>{escape(what)}</th><th>requests</th></tr>"
    return f"<section><h2>{escape(title)}</h2><table><thead>{head}</thead><tbody>{rows}</tbody></table></section>"


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
