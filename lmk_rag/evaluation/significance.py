"""Whether two methods differ on the same queries: a paired randomization test."""

from __future__ import annotations

import numpy as np

from lmk_rag.errors import InputError
from lmk_rag.types import Floats

_EXACT = 12  # pairs up to which all sign patterns are counted
_ROUNDS = 10_000
_AT_ONCE = 500


def paired_p_value(first: Floats, second: Floats, *, seed: int = 0) -> float:
    """Return the two-sided p-value of "the mean difference is 0", by flipping signs.

    If the methods were equal, each query's difference could as well have the other sign. The
    p-value is the share of sign patterns whose mean difference is at least as far from 0 as the
    one observed: of all patterns for up to 12 differing queries, else of 10,000 random ones and
    the observed one (so it is never 0).

    Args:
        first, second: (Q,) a metric per query, queries in the same order.
        seed: of the random patterns.

    Raises:
        InputError: the arrays are empty or differ in shape.
    """
    a, b = np.asarray(first, np.float64), np.asarray(second, np.float64)
    if a.shape != b.shape or a.ndim != 1 or len(a) == 0:
        raise InputError(f"the metrics have shapes {a.shape} and {b.shape}; expected equal, (Q,)")
    differences = a - b
    differences = differences[differences != 0]  # their sign changes nothing
    n = len(differences)
    if n == 0:
        return 1.0
    # Sums that are equal on paper differ by rounding.
    bar = abs(differences.sum()) - 1e-9 * np.abs(differences).sum()
    if n <= _EXACT:
        patterns = (np.arange(2**n)[:, None] >> np.arange(n)) & 1
        return float(np.mean(np.abs((2 * patterns - 1) @ differences) >= bar))
    random = np.random.default_rng(seed)
    extreme = 0
    for _ in range(0, _ROUNDS, _AT_ONCE):
        signs = 2 * random.integers(0, 2, (_AT_ONCE, n), dtype=np.int8) - 1
        extreme += int(np.sum(np.abs(signs @ differences) >= bar))
    return (extreme + 1) / (_ROUNDS + 1)
