"""Quality of a run, by ir-measures: nDCG@10, recall@100, reciprocal rank; by document length."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from lmk_rag.errors import require_extra
from lmk_rag.evaluation.runs import Run, ranking
from lmk_rag.evaluation.sets import RetrievalSet

METRICS = ("nDCG@10", "R@100", "RR")
SUCCESS = "Success@1"
EDGES = (0, 256, 512, 1024, 2048, 4096, 8192, 16384)  # tokens of the relevant document
_PASSKEY = re.compile(r"L(\d+)-\d+")  # ids of the passkey set name the length


@dataclass(frozen=True)
class Group:
    """Queries whose relevant documents are alike.

    Attributes:
        name: for tables, for instance "1024-2048" tokens.
        queries: how many.
        scores: mean of each metric.
    """

    name: str
    queries: int
    scores: Mapping[str, float]


@dataclass(frozen=True)
class MethodResult:
    """How a method did on a set.

    Attributes:
        method: its name.
        queries: how many were asked.
        scores: mean of each metric over the queries.
        seconds: for ranking, after everything was encoded.
        encodings: names of the encodings it rests on.
        by_length: by tokens of the relevant document (the mean, where there are several).
        by_passkey_length: by the length that the ids of a passkey set name.
        answer_recall: by "passages x per document" or "pieces" the share of answers covered
            within each budget of tokens.
        notes: what a reader should know, for instance documents the store refused.
    """

    method: str
    queries: int
    scores: Mapping[str, float]
    seconds: float
    encodings: tuple[str, ...] = ()
    by_length: tuple[Group, ...] = ()
    by_passkey_length: tuple[Group, ...] = ()
    answer_recall: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


def judge(run: Run, qrels: Mapping[str, Mapping[str, int]]) -> dict[str, dict[str, float]]:
    """Return each metric (and Success@1) per query; a query without results scores 0.

    nDCG has linear gains, as in trec_eval. What counts is the run's own order, also of documents
    with equal scores, which trec_eval would order by id.

    Raises:
        MissingExtraError: ir-measures is not installed.
    """
    measures = require_extra("ir_measures", "eval", "measuring retrieval")
    wanted = [measures.parse_measure(name) for name in (*METRICS, SUCCESS)]
    found: dict[str, dict[str, float]] = {
        str(measure): dict.fromkeys(qrels, 0.0) for measure in wanted
    }
    judged = [
        measures.Qrel(query_id, document_id, score)
        for query_id, of in qrels.items()
        for document_id, score in of.items()
    ]
    scored = [
        measures.ScoredDoc(query_id, document_id, -float(rank))
        for query_id, of in run.scores.items()
        for rank, document_id in enumerate(ranking(of), 1)
    ]
    if scored:
        for metric in measures.iter_calc(wanted, judged, scored):
            found[str(metric.measure)][metric.query_id] = float(metric.value)
    return found


def means(per_query: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    """Return the mean of each metric over the queries."""
    return {name: float(np.mean(list(per_query[name].values()))) for name in METRICS}


def by_length(
    data: RetrievalSet,
    lengths: Mapping[str, int],
    per_query: Mapping[str, Mapping[str, float]],
    edges: Sequence[int] = EDGES,
) -> tuple[Group, ...]:
    """Group the queries by the length of the relevant document.

    Args:
        data: the set.
        lengths: tokens by document id.
        per_query: what `judge` returned.
        edges: where the groups begin; the last has no end.
    """
    names = [
        f"{low}-{high}" if high is not None else f"{low}+"
        for low, high in zip(edges, [*edges[1:], None], strict=True)
    ]
    keys = {}
    for query_id, of in data.qrels.items():
        tokens = np.mean([lengths[document_id] for document_id, score in of.items() if score > 0])
        keys[query_id] = int(np.searchsorted(edges, tokens, side="right")) - 1
    return _groups({q: (at, names[at]) for q, at in keys.items()}, per_query, METRICS)


def by_passkey_length(
    data: RetrievalSet, per_query: Mapping[str, Mapping[str, float]]
) -> tuple[Group, ...]:
    """Group the queries by the length that ids like L1024-3 name; empty for other sets.

    Every query is ranked against the whole corpus, documents of all lengths.
    """
    keys = {}
    for query_id, of in data.qrels.items():
        matches = [_PASSKEY.fullmatch(document_id) for document_id in of]
        if any(match is None for match in matches):
            return ()
        length = max(int(match[1]) for match in matches if match)
        keys[query_id] = (length, str(length))
    return _groups(keys, per_query, (SUCCESS, "nDCG@10"))


def _groups(
    keys: Mapping[str, tuple[int, str]],
    per_query: Mapping[str, Mapping[str, float]],
    metrics: Sequence[str],
) -> tuple[Group, ...]:
    members: dict[tuple[int, str], list[str]] = {}
    for query_id, key in keys.items():
        members.setdefault(key, []).append(query_id)
    return tuple(
        Group(
            name,
            len(ids),
            {m: float(np.mean([per_query[m][query_id] for query_id in ids])) for m in metrics},
        )
        for (_, name), ids in sorted(members.items())
    )
