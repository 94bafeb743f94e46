"""The processes that train together, as torchrun tells each of them."""

from __future__ import annotations

import os

from torch import distributed


def process_count() -> int:
    """Return how many train together."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def is_first_process() -> bool:
    """Whether this is the one that writes and speaks for all."""
    return int(os.environ.get("RANK", "0")) == 0


def leave() -> None:
    """Leave the group, before this process ends.

    One that ends within it may be aborted, and then torchrun stops those still at work.
    """
    if distributed.is_available() and distributed.is_initialized():
        distributed.destroy_process_group()
