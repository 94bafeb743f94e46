"""Hard negatives: what our own retriever finds for a query though it is no known answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from lmk_rag.config import check_int
from lmk_rag.encoder import LandmarkEncoder
from lmk_rag.errors import ConfigError, TrainingDataError
from lmk_rag.progress import progress_bar
from lmk_rag.retriever import Retriever
from lmk_rag.store import QdrantStore
from lmk_rag.training.examples import Pair
from lmk_rag.types import Document


def mine_negatives(
    pairs: Sequence[Pair],
    encoder: LandmarkEncoder,
    *,
    n: int = 4,
    depth: int = 50,
    ceiling: float = 0.95,
    show_progress: bool = False,
) -> list[Pair]:
    """Give every pair up to `n` negatives.

    All positives go into a collection in memory; each query is searched there. Known positives
    of the query, texts equal to them, and texts that score above `ceiling` times the pair's own
    positive (which are likely to answer the query too; NV-Retriever, arXiv 2407.15831) are left
    out. A positive that is not among the first `depth` does not limit the negatives' scores.

    Args:
        pairs: their own negatives, if any, are replaced.
        encoder: reads both sides.
        n: the most negatives per pair.
        depth: how many texts are looked at.
        ceiling: share of the positive's score that a negative may reach.
        show_progress: show a bar.

    Returns:
        the pairs in order, with `negatives`, best first; fewer than `n` where fewer were found.

    Raises:
        ConfigError: a number out of range.
        TrainingDataError: the encoder can't read a positive.
    """
    check_int("n", n, minimum=1)
    check_int("depth", depth, minimum=1)
    if not 0 < ceiling <= 1:
        raise ConfigError(f"ceiling is {ceiling!r}; expected more than 0 and at most 1")
    texts = list(dict.fromkeys(pair.positive for pair in pairs))
    known: dict[str, set[str]] = {}
    for pair in pairs:
        known.setdefault(pair.query, set()).add(pair.positive)
    mined = []
    with QdrantStore("mining", encoder=encoder) as store:
        report = store.add(
            [Document(str(i), text) for i, text in enumerate(texts)],
            show_progress=show_progress,
        )
        if report.skipped:
            first = report.skipped[0]
            raise TrainingDataError(
                f"{len(report.skipped)} positives can't be read, the first "
                f"{texts[int(first.document_id)]!r:.80}: {first.reason}; take their pairs out"
            )
        retriever = Retriever(store)
        with progress_bar("mining negatives", len(pairs), show=show_progress) as advance:
            for pair in pairs:
                hits = retriever.search_documents(pair.query, k=depth)
                found = {texts[int(hit.document_id)]: hit.score for hit in hits}
                limit = ceiling * found.get(pair.positive, float("inf"))
                negatives = [
                    text
                    for text, score in found.items()
                    if text not in known[pair.query] and score <= limit
                ]
                mined.append(replace(pair, negatives=tuple(negatives[:n])))
                advance(1)
    return mined
