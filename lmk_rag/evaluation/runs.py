"""`Run`: what a method found; fusion of two runs, and TREC run files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from lmk_rag.errors import InputError
from lmk_rag.types import Floats

DEPTH = 100  # documents a run keeps per query: as many as recall@100 looks at


@dataclass(frozen=True)
class Run:
    """What a method found.

    Attributes:
        method: its name.
        scores: by query id the documents found, id to score; higher is better.
    """

    method: str
    scores: Mapping[str, Mapping[str, float]]


def run_of(
    method: str,
    scores: Floats,
    query_ids: Sequence[str],
    document_ids: Sequence[str],
    *,
    depth: int = DEPTH,
) -> Run:
    """Keep the best documents of each query; of equal scores the earlier document.

    Args:
        method: its name.
        scores: (queries, documents); -inf says "not found".
        query_ids, document_ids: of the rows and columns.
        depth: documents kept per query.
    """
    found = {}
    for query_id, row in zip(query_ids, scores, strict=True):
        order = np.argsort(-row, kind="stable")[:depth]
        found[query_id] = {document_ids[i]: float(row[i]) for i in order if row[i] > -np.inf}
    return Run(method, found)


def fuse(first: Run, second: Run, *, k: int = 60, depth: int = DEPTH) -> Run:
    """Fuse two runs by reciprocal rank: the sum of 1 / (k + rank) over the runs, ranks from 1.

    A document that a run lacks gets nothing from it. Of equal sums, the one that `first` ranks
    higher comes first.

    Raises:
        InputError: the runs are of different queries.
    """
    if first.scores.keys() != second.scores.keys():
        raise InputError(
            f"{first.method} has {len(first.scores)} queries and {second.method} "
            f"{len(second.scores)}, not the same ones; fuse runs of one set"
        )
    fused = {}
    for query_id in first.scores:
        sums: dict[str, float] = {}
        for run in (first, second):
            for rank, document_id in enumerate(ranking(run.scores[query_id]), 1):
                sums[document_id] = sums.get(document_id, 0.0) + 1 / (k + rank)
        fused[query_id] = {id_: sums[id_] for id_ in ranking(sums)[:depth]}
    return Run(f"{first.method}+{second.method}", fused)


def ranking(scores: Mapping[str, float]) -> list[str]:
    """Return the ids, best first; of equal scores the earlier one."""
    return sorted(scores, key=lambda id_: -scores[id_])


def write_trec(run: Run, path: Path) -> None:
    """Write a run as lines of `query Q0 document rank score method`.

    Raises:
        InputError: an id holds white space, which the format can't carry.
    """
    lines = []
    tag = "_".join(run.method.split())
    for query_id, scores in run.scores.items():
        for rank, document_id in enumerate(ranking(scores), 1):
            for id_ in (query_id, document_id):
                if len(id_.split()) != 1:
                    raise InputError(
                        f"the id {id_!r} holds white space, or nothing; a TREC run can't"
                    )
            lines.append(f"{query_id} Q0 {document_id} {rank} {scores[document_id]!r} {tag}\n")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(lines), "utf-8")


def read_trec(path: Path) -> Run:
    """Read a TREC run file; the method is the tag of its first line.

    Raises:
        InputError: not of that form; names the line.
    """
    scores: dict[str, dict[str, float]] = {}
    method = ""
    try:
        lines = path.read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path} can't be read: {error}") from error
    for number, line in enumerate(lines, 1):
        try:
            query_id, _, document_id, _, score, tag = line.split()
            scores.setdefault(query_id, {})[document_id] = float(score)
        except ValueError:
            raise InputError(
                f"{path}:{number}: found {line!r:.80}; expected 'query Q0 document rank score name'"
            ) from None
        method = method or tag
    return Run(method, scores)
