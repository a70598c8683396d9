"""The plot of a simulation: false alarms beside alpha, and the growing share of detected harm."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from matplotlib import colormaps
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from bench.power_cases import ALPHA

Found = Mapping[str, Mapping[str, Sequence[float]]]

_LINE = "#c8442c"


def write_plot(harmless: Found, harmful: Found, path: Path) -> None:
    sheet = Figure(figsize=(16, 9), layout="constrained")
    FigureCanvasAgg(sheet)  # draws into a file: no display is needed or opened
    alarms, curves = sheet.subplots(1, 2)
    checks = list(dict.fromkeys(check for case in harmless.values() for check in case))
    places = np.arange(len(harmless))
    for number, check in enumerate(checks):
        shares = [float(np.isfinite(case[check]).mean()) if check in case else 0.0 for case in harmless.values()]
        alarms.barh(places + 0.09 * (number - len(checks) / 2), shares, 0.08, label=check, color=_colour(number))
    alarms.axvline(ALPHA, color=_LINE, linestyle="--")
    alarms.annotate(" alpha", (ALPHA, 0.01), xycoords=("data", "axes fraction"), color=_LINE)
    alarms.set_yticks(places, list(harmless))
    alarms.invert_yaxis()
    alarms.set_xlabel("share of experiments that ever alarmed, looked at each second for ten minutes")
    alarms.set_title("Nothing is different: false alarms")
    alarms.legend(fontsize=8, ncols=2, loc="upper center", bbox_to_anchor=(0.4, -0.08))
    for number, (name, case) in enumerate(harmful.items()):
        for check, seconds in case.items():
            times = np.sort(np.asarray(seconds, float))
            share = np.arange(1, len(times) + 1) / len(times)
            is_found = np.isfinite(times)
            ends = np.append(times[is_found], 600.0)
            heights = np.append(share[is_found], is_found.mean())
            curves.step(ends, heights, where="post", label=f"{name} ({check})", color=_colour(number))
    curves.set_xscale("log")
    curves.set_xlim(1, 600)
    curves.set_ylim(0, 1.02)
    curves.set_xlabel("seconds of traffic")
    curves.set_ylabel("share of experiments in which it is found")
    curves.set_title("Something is different: how soon it is found")
    curves.legend(fontsize=8, ncols=2, loc="upper center", bbox_to_anchor=(0.5, -0.08))
    sheet.savefig(path, dpi=110)


def _colour(number: int) -> tuple[float, ...]:
    # Dark ones first: tab20 has each colour dark and light.
    return tuple(colormaps["tab20"]((2 * number + number // 10) % 20))
