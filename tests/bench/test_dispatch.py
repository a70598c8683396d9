"""The benchmark of dispatches: it times the step that the engine runs."""

from bench.dispatch import measure


def test_a_step_is_measured_both_ways() -> None:
    """A step has eight kernels a layer and three around them, called and replayed; each way has a figure a round."""
    dispatches, called, replayed = measure(rows=2, rounds=2)
    assert dispatches == 16 * 8 + 3
    assert len(called) == len(replayed) == 2 and all(each > 0 for each in (*called, *replayed))
