"""Answer recall: whether the answer stands in what is shown for a budget of tokens."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from lmk_rag.config import PER_DOCUMENT
from lmk_rag.evaluation.sets import Answer
from lmk_rag.progress import progress_bar
from lmk_rag.types import Floats, Ints, QueryEmbedding

if TYPE_CHECKING:
    from lmk_rag.evaluation.encodings import Pieces
    from lmk_rag.retriever import Mode, Retriever

BUDGETS = (256, 512, 1024)
# Tokens of a passage, and passages of one document, as asked of the retriever.
PASSAGES = ((256, 1), (256, PER_DOCUMENT))

# A run of a document's tokens, end exclusive.
TokenRange = tuple[str, int, int]


def within(ranges: Iterable[TokenRange], budget: int) -> list[TokenRange]:
    """Take token ranges in order until the budget is spent; the last is cut to what is left."""
    taken: list[TokenRange] = []
    for document_id, first, end in ranges:
        if budget <= 0:
            break
        kept = min(end - first, budget)
        if kept > 0:
            taken.append((document_id, first, first + kept))
            budget -= kept
    return taken


def is_covered(answer: TokenRange, shown: Sequence[TokenRange]) -> bool:
    """Whether every token of the answer is among those shown, in one range or several."""
    document_id, at, end = answer
    for first, last in sorted((a, b) for id_, a, b in shown if id_ == document_id):
        if first <= at < last:
            at = last
    return at >= end


def tokens_inside(offsets: Ints, start: int, end: int) -> tuple[int, int]:
    """Return the tokens that lie within characters [start, end)."""
    first = int(np.searchsorted(offsets[:, 0], start, side="left"))
    last = int(np.searchsorted(offsets[:, 1], end, side="right"))
    return first, max(first, last)


def tokens_touching(offsets: Ints, start: int, end: int) -> tuple[int, int]:
    """Return the tokens that hold a character of [start, end)."""
    first = int(np.searchsorted(offsets[:, 1], start, side="right"))
    last = int(np.searchsorted(offsets[:, 0], end, side="left"))
    return first, max(first, last)


def piece_recall(
    answers: Sequence[Answer],
    queries: Mapping[str, Floats],
    pieces: Pieces,
    document_ids: Sequence[str],
    offsets: Sequence[Ints],
) -> dict[str, float]:
    """Return the share of answers in the best pieces, by budget.

    Args:
        answers: what should be shown.
        queries: (D,) vectors by id.
        pieces: of all documents.
        document_ids: in the order of the pieces.
        offsets: (T, 2) characters of each document's tokens, in the same order.
    """
    starts = np.append(pieces.rows.first, len(pieces.tokens))
    owners = np.repeat(np.arange(len(document_ids)), np.diff(starts))
    enough = max(BUDGETS)
    found = dict.fromkeys(BUDGETS, 0)
    of = dict(zip(document_ids, offsets, strict=True))
    for answer in answers:
        order = np.argsort(-(pieces.rows.vectors @ queries[answer.query_id]), kind="stable")
        # Pieces have a token at least, but for those of blank documents.
        best: list[TokenRange] = within(
            (
                (document_ids[owners[i]], int(pieces.tokens[i, 0]), int(pieces.tokens[i, 1]))
                for i in order
            ),
            enough,
        )
        _count(found, answer, of, best)
    return _shares(found, len(answers))


def passage_recall(
    answers: Sequence[Answer],
    queries: Mapping[str, QueryEmbedding],
    words: Mapping[str, str] | None,
    retriever: Retriever,
    offsets: Mapping[str, Ints],
    *,
    show_progress: bool,
) -> dict[str, dict[str, float]]:
    """Return the share of answers in the retriever's best passages, by kind and budget.

    Args:
        answers: what should be shown.
        queries: by id.
        words: texts of the queries by id, for hybrid search; None: by landmarks alone.
        retriever: over a store of the documents.
        offsets: (T, 2) characters of each document's tokens, by id.
        show_progress: draw a bar on a terminal.
    """
    results = {}
    for tokens, per_document in PASSAGES:
        found = dict.fromkeys(BUDGETS, 0)
        name = f"{tokens} x {per_document}"
        with progress_bar(f"passages {name}", len(answers), show=show_progress) as advance:
            for answer in answers:
                query, own = queries[answer.query_id], (words or {}).get(answer.query_id)
                ranges: list[TokenRange] = []  # of a blank question, none
                if own is None or own.strip():
                    ranges = _passages(retriever, query, own, offsets, tokens, per_document)
                _count(found, answer, offsets, ranges)
                advance(1)
        results[name] = _shares(found, len(answers))
    return results


def _passages(
    retriever: Retriever,
    query: QueryEmbedding,
    words: str | None,
    offsets: Mapping[str, Ints],
    tokens: int,
    per_document: int,
) -> list[TokenRange]:
    """Return the best passages as token ranges: enough for the largest budget, or all there are."""
    k = 2 * max(BUDGETS) // tokens  # most end at a sentence end before they are full
    mode: Mode = "auto" if words is None else "hybrid"
    while True:
        passages = retriever.search(
            query,
            k=k,
            mode=mode,
            passage_tokens=tokens,
            per_document=per_document,
            words=words,
        )
        ranges = [
            (p.document_id, *tokens_inside(offsets[p.document_id], p.start, p.end))
            for p in passages
        ]
        if len(passages) < k or sum(end - first for _, first, end in ranges) >= max(BUDGETS):
            return ranges
        k *= 2


def _count(
    found: dict[int, int],
    answer: Answer,
    offsets: Mapping[str, Ints],
    ranges: Sequence[TokenRange],
) -> None:
    touched = tokens_touching(offsets[answer.document_id], answer.start, answer.end)
    for budget in found:
        found[budget] += is_covered((answer.document_id, *touched), within(ranges, budget))


def _shares(found: Mapping[int, int], n: int) -> dict[str, float]:
    return {str(budget): count / n for budget, count in found.items()}
