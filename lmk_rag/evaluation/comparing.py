"""Which differences between methods are more than chance."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from lmk_rag.evaluation.methods import Method
from lmk_rag.evaluation.significance import paired_p_value
from lmk_rag.types import Floats

METRIC = "nDCG@10"


def compare(
    methods: Mapping[str, Method], per_query: Mapping[str, Mapping[str, Mapping[str, float]]]
) -> list[dict[str, object]]:
    """Compare every method that uses our encoder with BM25, the best of the base, and its fusions.

    Args:
        methods: by key, those that were run on one set.
        per_query: metrics by query, by key.

    Returns:
        "first", "second", "difference" of the means and "p", a row per pair.
    """
    values = {
        key: np.array(list(per_query[key][METRIC].values())) for key in methods if key in per_query
    }
    ours = [key for key in values if methods[key].needs_ours]
    rivals = [key for key in values if methods[key].kind == "bm25"]
    for fused in (False, True):
        others = [
            key
            for key in values
            if methods[key].needs_base
            and not methods[key].needs_ours
            and (methods[key].kind == "fusion") == fused
        ]
        rivals += [max(others, key=lambda key: float(values[key].mean()))] if others else []
    return [_row(first, second, values) for first in ours for second in rivals]


def _row(first: str, second: str, values: Mapping[str, Floats]) -> dict[str, object]:
    a, b = values[first], values[second]
    return {
        "first": first,
        "second": second,
        "difference": float(a.mean() - b.mean()),
        "p": paired_p_value(a, b),
    }
