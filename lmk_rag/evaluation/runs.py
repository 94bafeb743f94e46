"""`Run`: what a method found; fusion of two methods, and TREC run files."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from lmk_rag.errors import InputError
from lmk_rag.fusion import CANDIDATES, Fusion, fuse
from lmk_rag.types import Floats, Ints
from lmk_rag.writing import write_text

DEPTH = 100  # documents a run keeps per query: as many as recall@100 looks at


@dataclass(frozen=True)
class Run:
    """What a method found.

    Attributes:
        method: its name.
        scores: by query id the documents found, id to score; higher is better, and of equal
            scores the first.
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


def fuse_scores(
    method: str,
    first: Floats,
    second: Floats,
    query_ids: Sequence[str],
    document_ids: Sequence[str],
    *,
    fusion: Fusion | None = None,
    depth: int = DEPTH,
) -> Run:
    """Fuse the scores of two methods in the way hybrid search fuses landmarks and words.

    Each hands on its 400 best documents, as `Retriever` does; see `lmk_rag.fusion` for the rules.

    Args:
        method: the name of the fusion.
        first: (queries, documents); -inf says "not found".
        second: as `first`; BM25 where a rule is to weigh scores, for it counts from 0.
        query_ids, document_ids: of the rows and columns.
        fusion: the rule; None: the one hybrid search has by default.
        depth: documents kept per query.
    """
    rule = Fusion() if fusion is None else fusion
    found = {}
    for query_id, *rows in zip(query_ids, first, second, strict=True):
        best = [_finite(row, np.argsort(-row, kind="stable")[:CANDIDATES]) for row in rows]
        if rule.rule == "weighted":  # a weight needs both scores of a document
            either = np.union1d(*best)
            best = [_finite(row, either) for row in rows]
        cosines, matches = (
            {document_ids[i]: float(row[i]) for i in own}
            for row, own in zip(rows, best, strict=True)
        )
        fused = fuse(cosines, matches, rule)
        found[query_id] = dict(list(fused.items())[:depth])
    return Run(method, found)


def score_rows(run: Run, query_ids: Sequence[str], document_ids: Sequence[str]) -> Floats:
    """Return a run as (queries, documents) float32, -inf where a document was not found."""
    columns = {document_id: i for i, document_id in enumerate(document_ids)}
    rows = np.full((len(query_ids), len(document_ids)), -np.inf, np.float32)
    for row, query_id in zip(rows, query_ids, strict=True):
        for document_id, score in run.scores[query_id].items():
            row[columns[document_id]] = score
    return rows


def _finite(row: Floats, indices: Ints) -> Ints:
    return indices[row[indices] > -np.inf]


def ranking(scores: Mapping[str, float]) -> list[str]:
    """Return the ids, best first; of equal scores the earlier one."""
    return sorted(scores, key=lambda id_: -scores[id_])


def check_ids(ids: Iterable[str]) -> None:
    """Make sure that TREC runs can carry ids.

    Raises:
        InputError: one holds white space, or nothing.
    """
    for id_ in ids:
        if len(id_.split()) != 1:
            raise InputError(
                f"the id {id_!r} holds white space, or nothing, which TREC runs can't carry; "
                "rename it, or write no runs (--no-runs)"
            )


def write_trec(run: Run, path: Path) -> None:
    """Write a run as lines of `query Q0 document rank score method`.

    trec_eval goes by score and, among equals, by document id; the ranks are the run's own.

    Raises:
        InputError: an id that the format can't carry, or the file can't be written.
    """
    lines = []
    tag = "_".join(run.method.split())
    for query_id, scores in run.scores.items():
        check_ids([query_id, *scores])
        for rank, document_id in enumerate(ranking(scores), 1):
            lines.append(f"{query_id} Q0 {document_id} {rank} {scores[document_id]!r} {tag}\n")
    write_text(path, "".join(lines))


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
