"""Documents by words: BM25 of the best segment and of the whole document, added.

In its best segment a question's words stand together; over the document none is missed that
stands elsewhere.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from lmk_rag.fusion import CANDIDATES
from lmk_rag.lexical import WordRule, query_vector
from lmk_rag.store.operations import Backend, Found, Where, completed
from lmk_rag.store.points import DOCUMENT_WORDS, WORDS


def search_words(
    backend: Backend,
    rule: WordRule,
    text: str,
    *,
    limit: int,
    where: Where,
    depth: int = CANDIDATES,
) -> list[Found]:
    """Find documents by words, best first.

    Args:
        backend: the collection.
        rule: what it counts of words.
        text: the query; one without words finds nothing.
        limit: documents.
        where: a filter.
        depth: documents that each of both rankings hands on, or `limit` if that is more.

    Returns:
        the best segment of each document, with the document's score, which is always whole. Which
        documents are found is exact as long as each is among the first `depth` of a ranking.
    """
    query = query_vector(text, pairs=rule.pairs)
    if not query:
        return []

    def ask(using: str, limit: int, where: Where) -> list[Found]:
        return backend.search_sparse(query, using=using, limit=limit, where=where)

    if rule.document is None:
        return ask(WORDS, limit, where)
    segments, wholes = (ask(using, max(limit, depth), where) for using in (WORDS, DOCUMENT_WORDS))
    segments = completed(segments, wholes, where, partial(ask, WORDS))
    wholes = completed(wholes, segments, where, partial(ask, DOCUMENT_WORDS))
    shares = {hit.document_id: hit.score for hit in wholes}
    found = [replace(hit, score=hit.score + shares.get(hit.document_id, 0.0)) for hit in segments]
    return sorted(found, key=lambda hit: -hit.score)[:limit]
