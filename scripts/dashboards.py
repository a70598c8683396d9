#!/usr/bin/env python3
"""Writes Grafana's dashboards of the gateway, docker/grafana/*.json, from the table below.

    python scripts/dashboards.py              # after a change of the table

A row is a line of panels. Each panel has PromQL expressions, whose `$route` and `$engine` are the choices of the page.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parents[1] / "docker" / "grafana"
# Grafana's grid
_COLUMNS = 24
_HEIGHT = 8
_SCHEMA_VERSION = 39  # of Grafana 11

_RATE = "[$__rate_interval]"
_OF = '{route=~"$route", engine=~"$engine"}'
_OF_ENGINE = '{engine=~"$engine"}'


@dataclass(frozen=True)
class DashboardPanel:
    """One plot: its unit is Grafana's name (`s`, `reqps`, `percentunit`), its queries are expression and legend."""

    title: str
    unit: str
    queries: tuple[tuple[str, str], ...]
    help: str = ""
    is_stacked: bool = False


@dataclass(frozen=True)
class Dashboard:
    """One page: rows of panels by the row's title."""

    uid: str
    title: str
    rows: dict[str, tuple[DashboardPanel, ...]]


def _rate(metric: str, by: str, selector: str = _OF) -> str:
    return f"sum by ({by}) (rate({metric}{selector}{_RATE}))"


def _share(part: str, whole: str, by: str, selector: str = _OF) -> str:
    return f"{_rate(part, by, selector)} / {_rate(whole, by, selector)}"


def _quantiles(histogram: str, by: str = "route") -> tuple[tuple[str, str], ...]:
    return tuple(
        (
            f"histogram_quantile({quantile}, sum by (le, {by}) (rate({histogram}_bucket{_OF}{_RATE})))",
            f"p{quantile * 100:g} {{{{{by}}}}}",
        )
        for quantile in (0.5, 0.99)
    )


def _failures() -> str:
    failed = _rate("pointsman_requests_total", "route", '{route=~"$route", engine=~"$engine", status=~"5.."}')
    return f"{failed} / {_rate('pointsman_requests_total', 'route')}"


TRAFFIC = Dashboard(
    "pointsman-traffic",
    "Pointsman: traffic and engines",
    {
        "Requests": (
            DashboardPanel(
                "Requests by route", "reqps", ((_rate("pointsman_requests_total", "route"), "{{route}}"),), "", True
            ),
            DashboardPanel(
                "Share of 5xx",
                "percentunit",
                ((_failures(), "{{route}}"),),
                "Replies of engines and of the gateway itself.",
            ),
            DashboardPanel(
                "Errors of the gateway",
                "reqps",
                ((_rate("pointsman_errors_total", "route, reason"), "{{route}} {{reason}}"),),
                "By x-pointsman-reason; gateway/README.md#failures explains each.",
            ),
        ),
        "Latency": (
            DashboardPanel("To the end of the reply", "s", _quantiles("pointsman_request_seconds")),
            DashboardPanel("To the first byte", "s", _quantiles("pointsman_first_byte_seconds")),
            DashboardPanel(
                "At engines",
                "s",
                _quantiles("pointsman_upstream_seconds", "engine"),
                "The last attempt alone: the difference to the first panel is waiting, retries and the gateway.",
            ),
        ),
        "Engines": (
            DashboardPanel(
                "Requests by engine and arm",
                "reqps",
                ((_rate("pointsman_requests_total", "engine, arm"), "{{engine}} {{arm}}"),),
                "",
                True,
            ),
            DashboardPanel(
                "Ready endpoints",
                "short",
                ((f"sum by (engine) (pointsman_endpoint_healthy{_OF_ENGINE})", "{{engine}}"),),
            ),
            DashboardPanel(
                "In flight by endpoint",
                "short",
                ((f"sum by (engine, endpoint) (pointsman_in_flight{_OF})", "{{engine}} {{endpoint}}"),),
            ),
            DashboardPanel(
                "Open breakers, drained endpoints",
                "short",
                (
                    (f"sum by (engine) (pointsman_breaker_open{_OF_ENGINE})", "{{engine}} open"),
                    (f"sum by (engine) (pointsman_endpoint_draining{_OF_ENGINE})", "{{engine}} drained"),
                ),
            ),
        ),
        "Retries, fallbacks, hedges": (
            DashboardPanel("Retries", "reqps", ((_rate("pointsman_retries_total", "engine"), "{{engine}}"),)),
            DashboardPanel(
                "Fallbacks",
                "reqps",
                (
                    (
                        _rate("pointsman_fallbacks_total", "engine, fallback, reason"),
                        "{{engine}} to {{fallback}}: {{reason}}",
                    ),
                ),
            ),
            DashboardPanel(
                "Hedges",
                "reqps",
                ((_rate("pointsman_hedges_total", "engine, outcome", _OF_ENGINE), "{{engine}} {{outcome}}"),),
            ),
        ),
        "Overload, limits, budgets": (
            DashboardPanel(
                "Waiting for overload protection",
                "short",
                ((f"sum by (engine, class) (pointsman_overload_waiting{_OF_ENGINE})", "{{engine}} {{class}}"),),
            ),
            DashboardPanel(
                "Refused by overload protection",
                "reqps",
                (
                    (
                        _rate("pointsman_overload_refused_total", "engine, class, reason", _OF_ENGINE),
                        "{{engine}} {{class}}: {{reason}}",
                    ),
                ),
            ),
            DashboardPanel(
                "Refused by limits", "reqps", ((_rate("pointsman_limit_refused_total", "limit", ""), "{{limit}}"),)
            ),
            DashboardPanel(
                "Exhausted accounts of budgets",
                "short",
                (("sum by (budget) (pointsman_budget_exhausted)", "{{budget}}"),),
            ),
        ),
        "The gateway": (
            DashboardPanel("Client connections", "short", (("sum(pointsman_connections)", "connections"),)),
            DashboardPanel(
                "Workers and restarts",
                "short",
                (
                    ("sum(pointsman_workers)", "workers"),
                    (f"sum(increase(pointsman_worker_restarts_total{_RATE}))", "restarts"),
                ),
            ),
            DashboardPanel(
                "Redis: failures and mean time",
                "short",
                (
                    (f"sum by (reason) (rate(pointsman_redis_failures_total{_RATE}))", "{{reason}} a second"),
                    (
                        f"sum(rate(pointsman_redis_seconds_total{_RATE})) / "
                        f"sum(rate(pointsman_redis_calls_total{_RATE})) * 1000",
                        "ms a call",
                    ),
                ),
            ),
            DashboardPanel(
                "Rules", "short", (("max by (instance) (pointsman_rules_number)", "number in force {{instance}}"),)
            ),
        ),
    },
)

LANGUAGE_MODELS = Dashboard(
    "pointsman-language-models",
    "Pointsman: language models",
    {
        "Latency of generations": (
            DashboardPanel("Time to first token", "s", _quantiles("pointsman_first_token_seconds")),
            DashboardPanel("Time per token", "s", _quantiles("pointsman_per_token_seconds")),
            DashboardPanel("Time to first token by engine", "s", _quantiles("pointsman_first_token_seconds", "engine")),
        ),
        "Tokens": (
            DashboardPanel(
                "Prompt tokens a second",
                "short",
                ((_rate("pointsman_prompt_tokens_total", "route"), "{{route}}"),),
                "",
                True,
            ),
            DashboardPanel(
                "Generated tokens a second",
                "short",
                ((_rate("pointsman_completion_tokens_total", "route"), "{{route}}"),),
                "",
                True,
            ),
            DashboardPanel(
                "Share of prompt tokens from the engines' caches",
                "percentunit",
                ((_share("pointsman_cached_tokens_total", "pointsman_prompt_tokens_total", "engine"), "{{engine}}"),),
            ),
            DashboardPanel(
                "Generated for clients that had left",
                "short",
                ((_rate("pointsman_cancelled_tokens_total", "engine"), "{{engine}}"),),
            ),
        ),
        "Engines": (
            DashboardPanel(
                "Running and waiting at engines",
                "short",
                (
                    (f"sum by (engine) (pointsman_engine_running{_OF_ENGINE})", "{{engine}} running"),
                    (f"sum by (engine) (pointsman_engine_waiting{_OF_ENGINE})", "{{engine}} waiting"),
                ),
            ),
            DashboardPanel(
                "Use of the key-value caches",
                "percentunit",
                ((f"max by (engine, endpoint) (pointsman_engine_kv_use{_OF_ENGINE})", "{{engine}} {{endpoint}}"),),
            ),
            DashboardPanel(
                "Prompts that follow a cached prefix",
                "percentunit",
                (
                    (
                        _share(
                            "pointsman_prefix_followed_total", "pointsman_prefix_requests_total", "engine", _OF_ENGINE
                        ),
                        "{{engine}}",
                    ),
                ),
            ),
            DashboardPanel(
                "Generations continued elsewhere",
                "reqps",
                ((_rate("pointsman_resumed_generations_total", "engine"), "{{engine}}"),),
            ),
        ),
    },
)

EXPERIMENTS = Dashboard(
    "pointsman-experiments",
    "Pointsman: experiments and shadows",
    {
        "Experiments": (
            DashboardPanel(
                "Share of each arm",
                "percentunit",
                (("max by (experiment, arm) (pointsman_arm_share)", "{{experiment}} {{arm}}"),),
                "",
                True,
            ),
            DashboardPanel(
                "Requests of each arm",
                "reqps",
                ((_rate("pointsman_arm_requests_total", "experiment, arm", ""), "{{experiment}} {{arm}}"),),
            ),
            DashboardPanel(
                "Share of failures",
                "percentunit",
                (
                    (
                        _share("pointsman_arm_errors_total", "pointsman_arm_requests_total", "experiment, arm", ""),
                        "{{experiment}} {{arm}}",
                    ),
                ),
                "A picture, not a verdict: `pointsman experiments show` has intervals that hold under monitoring.",
            ),
            DashboardPanel(
                "Status",
                "short",
                (("max by (experiment, status) (pointsman_experiment_status == 1)", "{{experiment}} {{status}}"),),
            ),
        ),
        "Shadows": (
            DashboardPanel(
                "Mirrored requests",
                "reqps",
                ((_rate("pointsman_shadow_mirrored_total", "route", '{route=~"$route"}'), "{{route}}"),),
            ),
            DashboardPanel(
                "Outcomes of the comparison",
                "reqps",
                (
                    (
                        _rate("pointsman_shadow_outcomes_total", "route, outcome", '{route=~"$route"}'),
                        "{{route}} {{outcome}}",
                    ),
                ),
                "",
                True,
            ),
            DashboardPanel(
                "Not mirrored",
                "reqps",
                (
                    (
                        _rate("pointsman_shadow_dropped_total", "route, reason", '{route=~"$route"}'),
                        "{{route}} {{reason}}",
                    ),
                ),
            ),
        ),
    },
)

DASHBOARDS = (TRAFFIC, LANGUAGE_MODELS, EXPERIMENTS)


def document(dashboard: Dashboard) -> dict[str, Any]:
    """The dashboard as Grafana imports it."""
    panels: list[dict[str, Any]] = []
    y = 0
    for title, row in dashboard.rows.items():
        panels.append({"type": "row", "title": title, "collapsed": False, "gridPos": _place(0, y, _COLUMNS, 1)})
        y += 1
        width = _COLUMNS // len(row)
        panels += [_panel(panel, _place(index * width, y, width, _HEIGHT)) for index, panel in enumerate(row)]
        y += _HEIGHT
    for number, panel in enumerate(panels, 1):
        panel["id"] = number
    return {
        "uid": dashboard.uid,
        "title": dashboard.title,
        "tags": ["pointsman"],
        "schemaVersion": _SCHEMA_VERSION,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "links": [{"type": "dashboards", "title": "Pointsman", "tags": ["pointsman"], "asDropdown": True}],
        "templating": {"list": [_data_source(), _choice("route"), _choice("engine")]},
        "panels": panels,
    }


def _place(x: int, y: int, width: int, height: int) -> dict[str, int]:
    return {"x": x, "y": y, "w": width, "h": height}


def _panel(panel: DashboardPanel, place: dict[str, int]) -> dict[str, Any]:
    custom: dict[str, Any] = {"fillOpacity": 20 if panel.is_stacked else 0, "showPoints": "never"}
    if panel.is_stacked:
        custom["stacking"] = {"mode": "normal", "group": "A"}
    return {
        "type": "timeseries",
        "title": panel.title,
        "description": panel.help,
        "datasource": {"type": "prometheus", "uid": "${datasource}"},
        "gridPos": place,
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0, "custom": custom}, "overrides": []},
        "options": {
            "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True},
            "tooltip": {"mode": "multi", "sort": "desc"},
        },
        "targets": [
            {"refId": chr(ord("A") + index), "expr": expression, "legendFormat": legend}
            for index, (expression, legend) in enumerate(panel.queries)
        ],
    }


def _data_source() -> dict[str, Any]:
    return {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus"}


def _choice(label: str) -> dict[str, Any]:
    """A choice among the values of a label, of which several may be taken."""
    query = f"label_values(pointsman_requests_total, {label})"
    return {
        "name": label,
        "label": label.capitalize(),
        "type": "query",
        "datasource": {"type": "prometheus", "uid": "${datasource}"},
        "query": {"query": query, "refId": label},
        "definition": query,
        "refresh": 2,
        "multi": True,
        "includeAll": True,
        "allValue": ".*",
        "current": {"text": ["All"], "value": ["$__all"]},
        "sort": 1,
    }


def text(dashboard: Dashboard) -> str:
    """The file of a dashboard."""
    return json.dumps(document(dashboard), indent=2) + "\n"


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    for dashboard in DASHBOARDS:
        path = FOLDER / f"{dashboard.uid.removeprefix('pointsman-')}.json"
        path.write_text(text(dashboard))
        print(path)


if __name__ == "__main__":
    main()
