"""`Retriever`: query -> candidates -> landmark MaxSim -> passages with exact spans."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal, TypeVar, get_args

import numpy as np

from lmk_rag.config import PER_DOCUMENT, check_int
from lmk_rag.errors import ConfigError, InputError
from lmk_rag.fusion import CANDIDATES, Fusion, fuse
from lmk_rag.passages import Stretch, best_stretches
from lmk_rag.queries import checked, vector_only
from lmk_rag.store import Filter, QdrantStore
from lmk_rag.store.filters import FieldIs
from lmk_rag.store.operations import Found, Where, completed
from lmk_rag.store.points import (
    DOCUMENT,
    LANDMARKS,
    SECTIONS,
    SEGMENT_TOKENS,
    Segment,
    join_segments,
    point_id,
)
from lmk_rag.types import DocumentHit, Floats, Passage, QueryEmbedding

Mode = Literal["auto", "exact", "two-stage", "document", "hybrid"]

_Held = TypeVar("_Held")
_TRIES = 20  # each further one needs yet another replacement in between
_SEGMENTS = 4  # candidates per document asked for, since one document may have many segments
_NEIGHBORS = 16  # of a segment, that its passage may rob of their best landmarks
_DEPTH = 100  # documents of each ranking that hybrid search joins, at least


@dataclass(frozen=True, eq=False)
class _Query:
    embedding: QueryEmbedding
    words: str  # read in hybrid mode only


class Retriever:
    """Search a store.

    Args:
        store: an open `QdrantStore`.
        candidates: segments that the first stage hands to the second in two-stage mode, and
            documents that each ranking hands to fusion in hybrid mode (100 at least). 400 keep
            0.99 of the exact top 10 on collections of some hundred long documents
            (benchmarks/stage1_recall.md).
        fusion: how hybrid mode joins landmarks and words.

    Modes: `exact` compares every landmark; `two-stage` takes candidates by their sections (means
    of up to 8 landmarks) and rescores them by landmarks; `document` ranks by the single document
    vector; `auto` is exact while the collection is small enough for that to be quick, else
    two-stage; `hybrid` joins the ranking of `auto` with that of BM25 over the words.

    Landmarks are compared by MaxSim: a text is read as a multi-vector, its own vector and one per
    two tokens, and the best landmark of a segment for each of them counts (`lmk_rag.queries`). Of
    a query given as a vector only that is known.
    """

    def __init__(
        self, store: QdrantStore, *, candidates: int = CANDIDATES, fusion: Fusion | None = None
    ) -> None:
        check_int("candidates", candidates, minimum=1)
        if not isinstance(fusion, Fusion | None):
            raise ConfigError(f"fusion is {fusion!r:.80}; expected a lmk_rag.fusion.Fusion or None")
        self.store = store
        self.candidates = candidates
        self.fusion = Fusion() if fusion is None else fusion

    def search(
        self,
        query: str | Floats | QueryEmbedding,
        *,
        k: int = 5,
        filter: Filter | None = None,  # noqa: A002  # the ecosystem's name for it
        mode: Mode = "auto",
        passage_tokens: int = 256,
        per_document: int = PER_DOCUMENT,
        words: str | None = None,
    ) -> list[Passage]:
        """Find the passages that answer a query.

        Args:
            query: a question or words, of which a blank one finds nothing; or what the encoder
                makes of it, with its parts or as a (D,) vector.
            k: the most passages.
            filter: on metadata.
            mode: see the class.
            passage_tokens: the most tokens in a passage (a single landmark may hold more). A
                passage grows around its best landmark and ends at sentence ends where it can.
            per_document: the most passages of one document; they don't overlap.
            words: what hybrid mode looks for by words where `query` is no text, or where it is
                to be another text; None: the query.

        Returns:
            passages, best first: in the order of `search_documents`, and (two stages may look at
            more candidates for more of them) more of them begin with the same ones. The `score` of
            a document's best passage is the document's (see `DocumentHit`), so that no document
            outranks those that were looked at; that of its further passages is MaxSim of the query
            and what they show, and in `document` and `hybrid` mode, which score by more than that,
            as much less than the document's, in shares, as their MaxSim is less than the best's. A
            passage is the stretch around a landmark that is among the best for the query's vector.

        Raises:
            InputError: `query` is neither a string, nor a (D,) array, nor a `QueryEmbedding` of
                this width, a number is less than 1, or `words` is given in a mode that reads
                none, or missing in hybrid mode where `query` is no text.
            ConfigError: no such mode.
            CollectionMismatchError: hybrid mode, and the collection holds no words.
            UnsupportedFilterError: the filter can't be applied exactly.
        """
        for name, value in (("passage_tokens", passage_tokens), ("per_document", per_document)):
            _check_positive(name, value)
        asked = self._query(query, words, k, mode)
        if asked is None:
            return []
        scores: dict[str, float] = {}
        where: Filter | FieldIs | None = filter
        if mode in ("document", "hybrid"):  # then its best segments by landmarks
            scores = {hit.document_id: hit.score for hit in self._find(asked, k, 1, filter, mode)}
            where = FieldIs("document_id", tuple(scores), also=filter)
            if not scores:
                return []
        of: dict[str, list[Passage]] = {id_: [] for id_ in scores}  # in this order among equals
        revisions: dict[str, str] = {}
        how: Mode = "exact" if scores else mode
        # Passages may take in the best of neighboring segments, so more are looked at.
        reach = _reach(passage_tokens)
        best_of = per_document * (1 + min(reach, _NEIGHBORS)) if per_document > 1 else 1
        found = self._fetched(asked, k, best_of, where, how, self.store.segments)
        shared = bool(scores)
        if not shared:
            for hit, _ in found:  # the best segment comes first
                scores.setdefault(hit.document_id, hit.score)
        segments = [
            segment
            for _, segment in found  # of an update in progress, the better revision is shown
            if revisions.setdefault(segment.document_id, segment.revision) == segment.revision
        ]
        for segment in self._with_neighbors(segments, reach):
            id_ = segment.document_id
            stretches = best_stretches(
                segment.text,
                segment.spans - segment.start,
                segment.tokens,
                segment.rows,
                asked.embedding,
                budget=passage_tokens,
                n=per_document,
            )
            of.setdefault(id_, []).extend(_passage(segment, stretch) for stretch in stretches)
        ranked = []
        for id_, passages in of.items():
            best = _best(passages)[:per_document]
            for place, passage in enumerate(best):
                score = scores[id_]
                if shared:
                    score -= abs(score) * _lag(passage.score, best[0].score)
                elif place > 0:
                    score = min(passage.score, score)
                ranked.append(replace(passage, score=score))
        return _best(ranked)[:k]

    def search_documents(
        self,
        query: str | Floats | QueryEmbedding,
        *,
        k: int = 5,
        filter: Filter | None = None,  # noqa: A002  # as in `search`
        mode: Mode = "auto",
        words: str | None = None,
    ) -> list[DocumentHit]:
        """Find the documents that answer a query; arguments and errors as in `search`."""
        asked = self._query(query, words, k, mode)
        if asked is None:
            return []
        return [
            DocumentHit(hit.document_id, hit.score, copy.deepcopy(metadata))
            for hit, metadata in self._fetched(asked, k, 1, filter, mode, self.store.metadata)
        ]

    def _with_neighbors(self, segments: list[Segment], reach: int) -> list[Segment]:
        """Join segments with so many on either side."""
        held: dict[str, dict[int, Segment]] = {}
        missing = []
        for segment in segments:
            held.setdefault(segment.document_id, {})[segment.segment] = segment
        for segment in segments:
            first = max(0, segment.segment - reach)
            last = min(segment.segment + reach, segment.n_segments - 1)
            missing += [
                point_id(segment.document_id, segment.revision, number)
                for number in range(first, last + 1)
                if number not in held[segment.document_id]
            ]
        for segment in self.store.segments(list(dict.fromkeys(missing))).values():
            held[segment.document_id][segment.segment] = segment
        return [joined for own in held.values() for joined in join_segments(own.values())]

    def _query(self, query: object, words: object, k: object, mode: Mode) -> _Query | None:
        _check_positive("k", k)
        if mode not in get_args(Mode):
            raise ConfigError(f"mode is {mode!r}; expected one of {', '.join(get_args(Mode))}")
        if not isinstance(words, str | None):
            raise InputError(f"words is {words!r:.80}; expected a string or None")
        if words is not None and mode != "hybrid":
            raise InputError(f"words are given, which mode={mode!r} does not read; use 'hybrid'")
        if isinstance(query, np.ndarray | QueryEmbedding):
            if mode == "hybrid" and not (words or "").strip():
                raise InputError(
                    "the query is a vector only, with or without parts, and hybrid search needs "
                    "its words too; pass the text as words=, or use another mode"
                )
            return _Query(self._embedding(query), words or "")
        if not isinstance(query, str):
            raise InputError(
                f"the query is {query!r:.80}; expected a string or an array, or a QueryEmbedding"
            )
        if not query.strip():
            return None
        (embedding,) = self.store.encoder.encode_query_parts([query])
        return _Query(self._embedding(embedding), query if words is None else words)

    def _embedding(self, query: Floats | QueryEmbedding) -> QueryEmbedding:
        found = checked(query, self.store.encoder.dim)
        return found if self.store.takes_parts else vector_only(found.vector)

    def _fetched(
        self,
        query: _Query,
        k: int,
        per_document: int,
        where: Filter | FieldIs | None,
        mode: Mode,
        fetch: Callable[[list[str]], dict[str, _Held]],
    ) -> list[tuple[Found, _Held]]:
        """Find points and fetch what they hold."""
        for _ in range(_TRIES):
            found = self._find(query, k, per_document, where, mode)
            held = fetch([hit.id for hit in found])
            if len(held) == len(found):
                break  # else some were deleted or replaced since they were found
        return [(hit, held[hit.id]) for hit in found if hit.id in held]

    def _find(
        self,
        query: _Query,
        k: int,
        per_document: int,
        where: Filter | FieldIs | None,
        mode: Mode,
        *,
        insist: bool = True,
    ) -> list[Found]:
        """Find points of k documents; two stages may find fewer unless one insists."""
        if mode == "hybrid":
            assert not isinstance(where, FieldIs), "those ask for landmarks"
            return self._fused(query, k, where)
        if mode == "auto":
            mode = "exact" if self.store.exact_is_quick() else "two-stage"
        using = DOCUMENT if mode == "document" else LANDMARKS
        candidates = max(self.candidates, _SEGMENTS * k)
        while True:
            found = self.store.search_points(
                query.embedding,
                using=using,
                limit=k,
                per_document=per_document,
                where=where,
                prefetch=(SECTIONS, candidates) if mode == "two-stage" else None,
            )
            if mode != "two-stage" or not insist:
                return found
            documents = len({hit.document_id for hit in found})
            if documents == k or candidates >= self.store.count_segments(where):
                return found
            candidates *= 4  # a few documents with many segments took all places

    def _fused(self, query: _Query, k: int, where: Filter | None) -> list[Found]:
        """Find documents by landmarks and by words, each with one of its points."""
        depth = max(_DEPTH, self.candidates, 2 * k)

        def words(limit: int, where: Where) -> list[Found]:
            return self.store.search_words(query.words, limit=limit, where=where)

        def landmarks(limit: int, where: Where) -> list[Found]:
            return self._find(query, limit, 1, where, "exact")

        by_words = words(depth, where)
        by_landmarks = self._find(query, depth, 1, where, "auto", insist=False)
        if self.fusion.rule == "weighted":
            by_landmarks = completed(by_landmarks, by_words, where, landmarks)
            by_words = completed(by_words, by_landmarks, where, words)
        points = {hit.document_id: hit.id for hit in [*by_words, *by_landmarks]}
        scores = fuse(
            {hit.document_id: hit.score for hit in by_landmarks},
            {hit.document_id: hit.score for hit in by_words},
            self.fusion,
        )
        return [Found(points[id_], id_, score) for id_, score in list(scores.items())[:k]]


def _reach(passage_tokens: int) -> int:
    """Return how many segments a passage may take in on either side of its own."""
    return -(-2 * passage_tokens // SEGMENT_TOKENS)  # most hold half of that at least


def _passage(segment: Segment, stretch: Stretch) -> Passage:
    return Passage(
        text=segment.text[stretch.start : stretch.end],
        start=segment.start + stretch.start,
        end=segment.start + stretch.end,
        line=segment.line + segment.text.count("\n", 0, stretch.start),
        score=stretch.score,
        document_id=segment.document_id,
        metadata=copy.deepcopy(segment.metadata),
        first_landmark=segment.first_landmark + stretch.first,
        last_landmark=segment.first_landmark + stretch.last,
        best_start=segment.start + stretch.best_start,
        best_end=segment.start + stretch.best_end,
    )


def _lag(score: float, best: float) -> float:
    """Return by what share a passage's MaxSim falls short of that of the document's best."""
    return min((best - score) / best, 1.0) if best > 0 else 0.0


def _best(passages: list[Passage]) -> list[Passage]:
    return sorted(passages, key=lambda passage: -passage.score)


def _check_positive(name: str, value: object) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise InputError(f"{name} is {value!r}; expected a whole number of at least 1")
