"""Batches of a token budget."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmk_rag.batching import token_batches


@pytest.mark.parametrize(
    ("lengths", "budget", "batches"),
    [
        ([], 10, []),
        ([3], 10, [[0]]),
        ([5, 5], 10, [[0, 1]]),
        ([5, 5], 9, [[0], [1]]),
        ([9, 9, 8], 27, [[0, 1], [2]]),  # half full, and the length changes
        ([9, 8, 2], 40, [[0, 1, 2]]),  # not half full yet
        ([1, 9, 2, 8], 18, [[1], [3, 2], [0]]),
        ([50, 1, 1], 10, [[0], [1, 2]]),
        ([2, 2, 2, 2, 2], 4, [[0, 1], [2, 3], [4]]),
    ],
)
def test_batches_go_from_long_to_short_within_the_budget(lengths, budget, batches):
    assert token_batches(lengths, budget) == batches


@given(st.lists(st.integers(1, 600), max_size=80), st.integers(1, 2_000))
def test_every_sequence_is_in_one_batch_and_padding_counts(lengths, budget):
    batches = token_batches(lengths, budget)
    assert sorted(i for batch in batches for i in batch) == list(range(len(lengths)))
    for batch in batches:
        padded = max(lengths[i] for i in batch) * len(batch)
        assert padded <= budget or len(batch) == 1
    longest = [max(lengths[i] for i in batch) for batch in batches]
    assert longest == sorted(longest, reverse=True)
