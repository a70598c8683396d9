"""Block copies before a step."""

import pytest

from engines.paged.runner.runner import _apart


@pytest.mark.parametrize(
    "copies, parts",
    [
        ((), []),
        (((1, 2), (1, 3), (4, 5)), [[(1, 2), (1, 3), (4, 5)]]),
        (((1, 2), (3, 1)), [[(1, 2)], [(3, 1)]]),  # 1 was freed in the same plan, and allocated again
        (((1, 2), (2, 3)), [[(1, 2)], [(2, 3)]]),
        (((1, 2), (3, 1), (5, 6)), [[(1, 2)], [(3, 1), (5, 6)]]),
    ],
)
def test_no_block_is_read_and_written_at_once(
    copies: tuple[tuple[int, int], ...], parts: list[list[tuple[int, int]]]
) -> None:
    """Dependent copies run one after another, in the planned order."""
    assert _apart(copies) == parts
