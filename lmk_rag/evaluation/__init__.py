"""Measure retrieval: sets, methods side by side, metrics, significance, reports. Extra `eval`.

    folder -> RetrievalSet -> SetSession -> Run -> MethodResult -> tables, JSON, TREC files, plot
              sets            encodings     runs   metrics         results, tables, plot
                              and methods

Each text is encoded once per model and setting; every method of that encoding is derived from it.
Importing this package imports neither torch nor what the extra installs.
"""

from __future__ import annotations

from lmk_rag.evaluation.methods import DEFAULT_METHODS, Method, parse_methods
from lmk_rag.evaluation.metrics import MethodResult, judge
from lmk_rag.evaluation.runs import Run, fuse_scores, read_trec, write_trec
from lmk_rag.evaluation.sets import Answer, RetrievalSet, limit, load_set
from lmk_rag.evaluation.significance import paired_p_value

__all__ = [
    "DEFAULT_METHODS",
    "Answer",
    "Method",
    "MethodResult",
    "RetrievalSet",
    "Run",
    "fuse_scores",
    "judge",
    "limit",
    "load_set",
    "paired_p_value",
    "parse_methods",
    "read_trec",
    "write_trec",
]
