"""Drafts of the next tokens, and how many of them are worth their cost."""

from engines.paged.generation.speculation import DraftLengthEstimator, NgramIndex


def test_what_followed_before_is_guessed() -> None:
    """If the last tokens occurred before, the draft is what followed them."""
    index = NgramIndex(2, 4)
    assert index.draft([1, 2, 3, 4, 5, 1, 2, 3], 2) == [4, 5]


def test_the_longest_match_wins_and_the_latest_of_equals() -> None:
    """The longest match wins, and the latest among matches of equal length."""
    index = NgramIndex(1, 4)
    assert index.draft([7, 1, 2, 3, 9, 9, 5, 2, 3, 8, 8, 1, 2, 3], 1) == [9]
    assert index.draft([7, 1, 2, 3, 9, 9, 5, 2, 3, 8, 8, 1, 2, 3, 6, 2, 3], 1) == [6]


def test_nothing_is_guessed_of_news() -> None:
    """There is no draft if no suffix of the minimum length occurred before."""
    assert NgramIndex(2, 4).draft([1, 2, 3, 4], 3) == []


def test_a_repetition_goes_on_for_ever() -> None:
    """If the match reaches the end of the text, the draft repeats it in a cycle."""
    assert NgramIndex(1, 4).draft([5, 6, 5, 6], 5) == [5, 6, 5, 6, 5]


def test_an_index_grows_with_its_text() -> None:
    """An index updated after each token drafts the same as a new index of the whole text."""
    tokens = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9, 3, 2, 3]
    index = NgramIndex(1, 3)
    for end in range(1, len(tokens)):
        assert index.draft(tokens[:end], 3) == NgramIndex(1, 3).draft(tokens[:end], 3)


def test_right_guesses_make_bold() -> None:
    """If all drafts are accepted and cheap, the length is the maximum."""
    draft_length = DraftLengthEstimator(6)
    for _ in range(20):
        draft_length.observe(4, 4)
    assert draft_length.num_drafts(0.05) == 6


def test_guesses_that_lose_are_left_out_and_tried_again() -> None:
    """Expensive drafts that are rejected stop drafting; an occasional trial resumes it when accepted."""
    draft_length = DraftLengthEstimator(4)
    for _ in range(30):
        draft_length.observe(4, 0)
    request = [draft_length.num_drafts(0.3) for _ in range(100)]
    assert 2 <= sum(request) <= 5 and set(request) == {0, 1}
    for _ in range(30):
        draft_length.observe(1, 1)
    while not (count := draft_length.num_drafts(0.3)):
        pass
    assert count > 1


def test_dear_guesses_need_to_be_right() -> None:
    """At an acceptance rate of one half, drafts that cost a tenth of a step are made, and drafts that cost a whole step
    are not."""
    draft_length = DraftLengthEstimator(4)
    for _ in range(40):
        draft_length.observe(2, 1)
    assert draft_length.num_drafts(0.1) > 0
    for _ in range(2):
        draft_length.num_drafts(1.0)
    assert draft_length.num_drafts(1.0) == 0
