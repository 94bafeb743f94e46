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
        padded = longest * len(batches[-1]) if batches else 0
        # A batch that is half full ends where the length changes: without padding it needs no
        # mask, and the model is quicker without one.
        even = lengths[index] == longest or padded < budget // 2
        if batches and padded + longest <= budget and even:
            batches[-1].append(index)
        else:
            batches.append([index])
            longest = lengths[index]
    return batches
