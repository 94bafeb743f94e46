"""Group windows into batches by a budget of padded tokens."""

from __future__ import annotations

from collections.abc import Sequence


def token_batches(lengths: Sequence[int], budget: int) -> list[list[int]]:
    """Group sequences of like length, longest first, so that running out of memory shows early.

    Args:
        lengths: tokens per sequence.
        budget: the most tokens a batch may hold after padding to its longest; a sequence
            longer than that makes a batch of its own.

    Returns:
        index lists that hold every sequence once.
    """
    batches: list[list[int]] = []
    longest = 0
    for index in sorted(range(len(lengths)), key=lambda i: (-lengths[i], i)):
        if batches and longest * (len(batches[-1]) + 1) <= budget:
            batches[-1].append(index)
        else:
            batches.append([index])
            longest = lengths[index]
    return batches
