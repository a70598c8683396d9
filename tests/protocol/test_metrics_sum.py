"""The metrics of several servers as those of one."""

from __future__ import annotations

from math import nan

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.protocol.metrics_sum import MetricFamily, read_families, sum_families, write_families
from gateway.routing.steps import run_now


def total(*texts: str, carried: dict[str, MetricFamily] | None = None) -> str:
    families = [run_now(read_families(text, lambda name: name.startswith("nv_"))) for text in texts]
    return run_now(write_families(run_now(sum_families(families, carried or {})))).decode()


COUNTER = "# HELP nv_a Help of a\n# TYPE nv_a counter\n"


@pytest.mark.parametrize(
    "first, second, expected",
    [
        (
            COUNTER + 'nv_a{model="m",version="1"} 3\nnv_a{model="n",version="1"} 1\n',
            COUNTER + 'nv_a{model="m",version="1"} 4\n',
            COUNTER + 'nv_a{model="m",version="1"} 7\nnv_a{model="n",version="1"} 1\n',
        ),
        ("# TYPE nv_g gauge\nnv_g 1.5\n", "# TYPE nv_g gauge\nnv_g 2\n", "# HELP nv_g \n# TYPE nv_g gauge\nnv_g 3.5\n"),
        (
            '# TYPE nv_p gauge\nnv_p{gpu_uuid="G"} 50\n',
            '# TYPE nv_p gauge\nnv_p{gpu_uuid="G"} 51\nnv_p{gpu_uuid="H"} 1\n',
            '# HELP nv_p \n# TYPE nv_p gauge\nnv_p{gpu_uuid="G"} 51\nnv_p{gpu_uuid="H"} 1\n',
        ),
        (
            "# TYPE nv_cpu_utilization gauge\nnv_cpu_utilization 0.5\n",
            "# TYPE nv_cpu_utilization gauge\nnv_cpu_utilization 0.75\n",
            "# HELP nv_cpu_utilization \n# TYPE nv_cpu_utilization gauge\nnv_cpu_utilization 0.75\n",
        ),
        (
            '# TYPE nv_s summary\nnv_s_count{model="m"} 2\nnv_s_sum{model="m"} 5\nnv_s{model="m",quantile="0.5"} 3\n',
            '# TYPE nv_s summary\nnv_s_count{model="m"} 1\nnv_s_sum{model="m"} 1\nnv_s{model="m",quantile="0.5"} 1\n',
            "# HELP nv_s \n# TYPE nv_s summary\n"
            'nv_s_count{model="m"} 3\nnv_s_sum{model="m"} 6\nnv_s{model="m",quantile="0.5"} 3\n',
        ),
        (
            '# TYPE nv_h histogram\nnv_h_count 2\nnv_h_sum 5\nnv_h_bucket{le="1"} 1\nnv_h_bucket{le="2"} 1\n'
            'nv_h_bucket{le="+Inf"} 2\n',
            '# TYPE nv_h histogram\nnv_h_count 1\nnv_h_sum 1\nnv_h_bucket{le="1"} 1\nnv_h_bucket{le="+Inf"} 1\n',
            "# HELP nv_h \n# TYPE nv_h histogram\n"
            'nv_h_count 3\nnv_h_sum 6\nnv_h_bucket{le="1"} 2\nnv_h_bucket{le="+Inf"} 3\n',
        ),
        ("nv_u 1\n", "nv_u 2\n", "# HELP nv_u \n# TYPE nv_u untyped\nnv_u 3\n"),
        ("# TYPE nv_k counter\nnv_k 1\n", "# TYPE nv_k gauge\nnv_k 2\n", "# HELP nv_k \n# TYPE nv_k counter\nnv_k 1\n"),
        ("other 1\nnv_x\nnv_x{ 1\nnv_x one\n# TYPE\n\xff\n", 'nv_x{a="}\\"{"} 1 1700\n', 'nv_x{a="}\\"{"} 1\n'),
    ],
    ids=["counters", "gauges", "devices", "shares", "summaries", "bounds", "untyped", "kinds", "malformed"],
)
def test_sums(first: str, second: str, expected: str) -> None:
    """Counts and gauges add up; of what servers share, and of quantiles, the largest stands; a histogram has the bounds
    that all its servers have; what is not understood is passed over."""
    assert total(first, second).endswith(expected)


@pytest.mark.parametrize(
    "text, expected",
    [
        ("# TYPE nv_y weird\nnv_y 1\n", ""),
        ("# TYPE nv_y\nnv_y 1\n", ""),
        ("# TYPE nv_y COUNTER\nnv_y 1\n", ""),
        ("# HELP nv_y a\rpointsman_up 9\n# TYPE nv_y counter\nnv_y 1\n", "# HELP nv_y \n# TYPE nv_y counter\nnv_y 1\n"),
        ('# TYPE nv_y gauge\nnv_y{a="\u2028"} 1\nnv_y{a="1"b="2"} 1\nnv_y{,} 1\n', ""),
        ("# HELP nv_y Y\r\n# TYPE nv_y counter\r\nnv_y 1\r\n", "# HELP nv_y Y\n# TYPE nv_y counter\nnv_y 1\n"),
    ],
    ids=["unknown kind", "no kind", "upper case", "line break in a help", "labels", "CRLF"],
)
def test_what_prometheus_would_not_read(text: str, expected: str) -> None:
    """One server's text cannot make the whole page illegible."""
    assert total(text, "# TYPE nv_z gauge\nnv_z 1\n") == expected + "# HELP nv_z \n# TYPE nv_z gauge\nnv_z 1\n"


def test_counts_of_servers_that_are_gone() -> None:
    """They are added to those of the others."""
    carried = {"nv_a": MetricFamily("Help of a", "counter", {("nv_a", ""): 5.0})}
    assert total(COUNTER + "nv_a 1\n", carried=carried) == COUNTER + "nv_a 6\n"
    assert total(carried=carried) == COUNTER + "nv_a 5\n"


def test_a_value_that_is_no_number() -> None:
    """The quantile of a server without values is NaN; that of another stands."""
    text = '# TYPE nv_s summary\nnv_s{{quantile="0.5"}} {}\n'
    assert total(text.format(nan), text.format(2)).endswith("2\n")
    assert total(text.format(nan)).lower().endswith("nan\n")


@given(st.text(alphabet='nv_a{}=",\\ 1.#TYPE\n', max_size=60))
def test_any_text(text: str) -> None:
    """Whatever a server sends, what is written can be read again, and is the same."""
    written = total(text)
    assert total(written) == written


def test_steps() -> None:
    """Long texts are read, added and written in steps, between which the control process serves."""
    text = COUNTER + "".join(f'nv_a{{model="{number}"}} {number}\n' for number in range(6400))
    read = read_families(text, lambda name: True)
    assert sum(1 for _ in read) >= 200
    families = run_now(read_families(text, lambda name: True))
    assert sum(1 for _ in sum_families([families], {})) >= 200
    assert sum(1 for _ in write_families(families)) >= 200
