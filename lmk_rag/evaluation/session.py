"""`SetSession`: the methods run on one set, over encodings that they share."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import numpy as np

from lmk_rag.errors import ConfigError
from lmk_rag.evaluation.answers import passage_recall, piece_recall
from lmk_rag.evaluation.bm25 import bm25_scores
from lmk_rag.evaluation.encodings import (
    Encoding,
    Landmarks,
    Pieces,
    encode_cut,
    encode_landmarks,
    encode_pieces,
    encode_queries,
)
from lmk_rag.evaluation.methods import WORD_KINDS, Method
from lmk_rag.evaluation.metrics import MethodResult, by_length, by_passkey_length, judge, means
from lmk_rag.evaluation.runs import DEPTH, Run, fuse_scores, run_of, score_rows
from lmk_rag.fusion import Fusion
from lmk_rag.progress import progress_bar
from lmk_rag.retriever import Mode, Retriever
from lmk_rag.store import QdrantStore

if TYPE_CHECKING:
    from lmk_rag.encoder import LandmarkEncoder
    from lmk_rag.evaluation.baseline import Baseline
    from lmk_rag.evaluation.cache import ArrayCache
    from lmk_rag.evaluation.sets import RetrievalSet
    from lmk_rag.types import Floats, Ints, QueryEmbedding

# Rankings that a method returns, and the names of the encodings they rest on.
_Ranked = tuple[Run, tuple[str, ...]]


class SetSession:
    """One set under evaluation.

    Args:
        data: the set.
        encoder: ours; None if no method needs it.
        base: the base model; None if no method needs it.
        cache: where encodings are kept.
        show_progress: draw bars on a terminal.

    Attributes:
        encodings: what each encoding cost, by name.
        runs: what each method found, by name.
        per_query: nDCG@10, R@100, RR and Success@1 by query, by method.
    """

    def __init__(
        self,
        data: RetrievalSet,
        *,
        encoder: LandmarkEncoder | None,
        base: Baseline | None,
        cache: ArrayCache,
        show_progress: bool = False,
    ) -> None:
        self.data = data
        self.encodings: dict[str, Encoding] = {}
        self.runs: dict[str, Run] = {}
        self.per_query: dict[str, dict[str, dict[str, float]]] = {}
        self._encoder, self._base, self._cache = encoder, base, cache
        self._show = show_progress
        self._query_ids = list(data.queries)
        self._queries = list(data.queries.values())
        self._document_ids = [document.id for document in data.documents]
        self._vectors: dict[str, Floats] = {}
        self._in_parts: list[QueryEmbedding] | None = None
        self._landmarks: Landmarks | None = None
        self._pieces: dict[tuple[int, int], Pieces] = {}
        self._cuts: dict[int, Floats] = {}
        self._bm25: Floats | None = None
        self._words: Floats | None = None
        self._store: QdrantStore | None = None
        self._offsets: list[Ints] | None = None
        self._notes: dict[str, tuple[str, ...]] = {}
        self._seconds: dict[str, float] = {}
        self._rests_on: dict[str, tuple[str, ...]] = {}

    def close(self) -> None:
        """Let the store go."""
        if self._store is not None:
            self._store.close()

    def evaluate(self, method: Method) -> MethodResult:
        """Run a method and judge it.

        Raises:
            ConfigError: the method needs a model that was not given, or can't be run with it.
        """
        self._prepare(method)
        run, encodings = self._ranked(method)
        per_query = self.per_query[method.name] = judge(run, self.data.qrels)
        lengths = self._lengths()
        return MethodResult(
            method=method.name,
            queries=len(self._queries),
            scores=means(per_query),
            seconds=self._seconds[method.name],
            encodings=encodings,
            by_length=() if lengths is None else by_length(self.data, lengths, per_query),
            by_passkey_length=by_passkey_length(self.data, per_query),
            answer_recall=self._answer_recall(method),
            notes=self._notes.get(method.name, ()),
        )

    def _prepare(self, method: Method) -> None:
        """Encode what a method needs, so that its own time is that of ranking."""
        if method.kind in ("document", "landmarks", "mixed"):
            self._ours()
            self._asked(self._need_encoder())
        elif method.kind in ("retriever", "words", "hybrid"):
            self._opened_store()
            if method.kind != "words":
                self._asked_in_parts()
        elif method.kind == "cut":
            self._cut(method.size)
            self._asked(self._need_base().encoder(method.size))
        elif method.needs_base and method.kind != "fusion":
            self._piece(method)
            self._asked(self._need_base().query_encoder)
        for part in method.parts:
            self._prepare(part)

    def _ranked(self, method: Method) -> _Ranked:
        if method.name in self.runs:
            return self.runs[method.name], self._rests_on[method.name]
        started = time.perf_counter()
        if method.kind == "fusion":
            # Words come second, wherever they were named: only their scores count from 0.
            parts = sorted(method.parts, key=lambda part: part.kind in WORD_KINDS)
            (first, ours), (second, theirs) = (self._part(part) for part in parts)
            run = fuse_scores(
                method.name,
                first,
                second,
                self._query_ids,
                self._document_ids,
                fusion=None if method.fuses_scores else Fusion("rrf", words=0.5),
            )
            encodings = tuple(dict.fromkeys(ours + theirs))
        elif method.kind in ("retriever", "hybrid"):
            run, encodings = self._retrieved(method), ("ours",)
        else:
            scores, encodings = self._scores(method)
            run = run_of(method.name, scores, self._query_ids, self._document_ids)
        self.runs[method.name], self._rests_on[method.name] = run, encodings
        self._seconds[method.name] = time.perf_counter() - started
        return run, encodings

    def _part(self, method: Method) -> tuple[Floats, tuple[str, ...]]:
        """Return the scores of a method that is fused with another."""
        if method.kind in ("retriever", "hybrid", "fusion"):
            run, encodings = self._ranked(method)
            return score_rows(run, self._query_ids, self._document_ids), encodings
        return self._scores(method)

    def _scores(self, method: Method) -> tuple[Floats, tuple[str, ...]]:
        """Return (queries, documents) scores of a method that ranks by one number."""
        if method.kind == "bm25":
            if self._bm25 is None:
                self._bm25 = bm25_scores(self.data.texts, self._queries)
            return self._bm25, ()
        if method.kind == "words":
            return self._word_scores(), ("ours",)
        if method.kind == "cut":
            base = self._need_base().encoder(method.size)
            queries = self._asked(base)
            return queries @ self._cut(method.size).T, (method.name,)
        if method.needs_base:
            queries = self._asked(self._need_base().query_encoder)
            rows = self._piece(method).rows
            scores = rows.best(queries) if method.kind == "chunk-max" else queries @ rows.mean().T
            return scores, (_pieces_name(method),)
        queries = self._asked(self._need_encoder())
        ours = self._ours()
        if method.kind == "document":
            return queries @ ours.documents.T, ("ours",)
        best = ours.rows.best(queries)
        if method.kind == "mixed":
            best = (best + queries @ ours.documents.T) / 2
        return best, ("ours",)

    def _word_scores(self) -> Floats:
        """Return the scores of all documents by the store's words alone."""
        if self._words is None:
            store, depth = self._opened_store(), len(self._document_ids)
            found = {
                id_: {hit.document_id: hit.score for hit in store.search_words(text, limit=depth)}
                for id_, text in self.data.queries.items()
            }
            run = Run("words", found)
            self._words = score_rows(run, self._query_ids, self._document_ids)
        return self._words

    def _retrieved(self, method: Method) -> Run:
        """Ask the retriever, as users do."""
        store = self._opened_store()
        retriever = Retriever(store)
        found = {}
        embeddings = self._asked_in_parts()
        mode: Mode = "hybrid" if method.kind == "hybrid" else "auto"
        with progress_bar(method.name, len(embeddings), show=self._show) as advance:
            for (query_id, text), embedding in zip(
                self.data.queries.items(), embeddings, strict=True
            ):
                words = text if mode == "hybrid" else None
                query = embedding if text.strip() else text  # a blank one finds nothing
                hits = retriever.search_documents(query, k=DEPTH, mode=mode, words=words)
                found[query_id] = {hit.document_id: hit.score for hit in hits}
                advance(1)
        stage = "exact" if store.exact_is_quick() else "two-stage"
        missing = len(self._document_ids) - store.count()
        notes = [] if mode != "auto" else [f"mode auto searched {stage}"]
        notes += [f"{missing} documents are not in the store"] if missing else []
        self._notes[method.name] = tuple(notes)
        return Run(method.name, found)

    def _answer_recall(self, method: Method) -> dict[str, dict[str, float]]:
        """Return what passages or pieces of this method cover of the answers, if any are known."""
        if not self.data.answers or self._base is None:
            return {}
        answers = self.data.answers
        if method.kind == "chunk-max":
            queries = dict(zip(self._query_ids, self._asked(self._base.query_encoder), strict=True))
            pieces = self._piece(method)
            return {
                "pieces": piece_recall(
                    answers, queries, pieces, self._document_ids, self._all_offsets()
                )
            }
        if method.kind in ("retriever", "hybrid"):
            return passage_recall(
                answers,
                dict(zip(self._query_ids, self._asked_in_parts(), strict=True)),
                self.data.queries if method.kind == "hybrid" else None,
                Retriever(self._opened_store()),
                dict(zip(self._document_ids, self._all_offsets(), strict=True)),
                show_progress=self._show,
            )
        return {}

    def _lengths(self) -> dict[str, int] | None:
        """Return tokens by document; None without any model to count by."""
        if self._base is not None:
            counts = [len(offsets) for offsets in self._all_offsets()]
        elif self._encoder is not None:
            counts = [embedding.n_tokens for embedding in self._ours().embeddings]
        else:
            return None
        return dict(zip(self._document_ids, counts, strict=True))

    def _all_offsets(self) -> list[Ints]:
        """Tokens of each document, as the base model counts them: one measure for all methods."""
        if self._offsets is None:
            base = self._need_base()
            self._offsets = [base.offsets(text).astype(np.int32) for text in self.data.texts]
        return self._offsets

    def _need_base(self) -> Baseline:
        if self._base is None:
            raise ConfigError("this method needs the base model, and none was given")
        return self._base

    def _need_encoder(self) -> LandmarkEncoder:
        if self._encoder is None:
            raise ConfigError("this method needs an encoder, and none was given")
        return self._encoder

    def _ours(self) -> Landmarks:
        if self._landmarks is None:
            self._landmarks = encode_landmarks(
                self._need_encoder(), self.data.texts, self._cache, show_progress=self._show
            )
            self.encodings["ours"] = self._landmarks.encoding
        return self._landmarks

    def _asked(self, encoder: LandmarkEncoder) -> Floats:
        """Return (Q, D) vectors of the queries, encoded once per encoder."""
        if encoder.fingerprint not in self._vectors:
            self._vectors[encoder.fingerprint] = encode_queries(encoder, self._queries, self._cache)
        return self._vectors[encoder.fingerprint]

    def _asked_in_parts(self) -> list[QueryEmbedding]:
        """Return the queries as the retriever reads them, encoded once."""
        if self._in_parts is None:
            self._in_parts = self._need_encoder().encode_query_parts(self._queries)
        return self._in_parts

    def _cut(self, window: int) -> Floats:
        if window not in self._cuts:
            self._cuts[window], cost = encode_cut(
                self._need_base(),
                self.data.texts,
                self._cache,
                window=window,
                show_progress=self._show,
            )
            self.encodings[f"cut@{window}"] = cost
        return self._cuts[window]

    def _piece(self, method: Method) -> Pieces:
        key = (method.size, method.overlap)
        if key not in self._pieces:
            self._pieces[key] = encode_pieces(
                self._need_base(),
                self.data.texts,
                self._cache,
                size=method.size,
                overlap=method.overlap,
                show_progress=self._show,
            )
            self.encodings[_pieces_name(method)] = self._pieces[key].encoding
        return self._pieces[key]

    def _opened_store(self) -> QdrantStore:
        if self._store is None:
            embeddings = self._ours().embeddings
            self._store = QdrantStore("evaluation", encoder=self._need_encoder())
            encoded = zip(self.data.documents, embeddings, strict=True)
            self._store.add_encoded(encoded, show_progress=self._show)
        return self._store


def _pieces_name(method: Method) -> str:
    return "pieces@" + method.name.partition("@")[2]
