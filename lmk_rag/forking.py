"""What a fork breaks, mended in the child: OpenMP's threads and locks that were held."""

from __future__ import annotations

import os
import threading
import weakref

import torch


class ForkSafeLock:
    """A re-entrant lock that is free again in the child of a fork.

    The thread that held it does not exist there and would never release it.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        _LOCKS.add(self)

    def held(self) -> threading.RLock:
        """Return the lock itself, to be used in a `with` statement."""
        return self._lock

    def renew(self) -> None:
        """Forget who holds it."""
        self._lock = threading.RLock()


_LOCKS: weakref.WeakSet[ForkSafeLock] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    # OpenMP's threads do not survive a fork: a parallel region in the child would hang.
    torch.set_num_threads(1)
    for lock in list(_LOCKS):
        lock.renew()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
