"""Our encoder and our whole retriever as models of mteb (version 2). Extra `mteb`.

    import mteb
    from lmk_rag import LandmarkEncoder
    from lmk_rag.evaluation.mteb_adapter import MtebRetriever

    mteb.evaluate(MtebRetriever(LandmarkEncoder()), mteb.get_tasks(tasks=["LEMBQMSumRetrieval"]))

The encoder gives one vector per text, as any embedding model does; the retriever is scored through
mteb's search protocol, so that landmarks and two-stage search count.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from lmk_rag.errors import InputError, require_extra
from lmk_rag.progress import progress_bar
from lmk_rag.retriever import Mode, Retriever
from lmk_rag.store import QdrantStore
from lmk_rag.store.filters import In
from lmk_rag.types import Document, Floats

if TYPE_CHECKING:
    from lmk_rag.encoder import LandmarkEncoder

_ID = "id"  # metadata key of a document's id, for tasks that name the documents to rank


class MtebEncoder:
    """An encoder in mteb's sense: the document vector of a text, or the vector of a query.

    Args:
        encoder: ours.
    """

    def __init__(self, encoder: LandmarkEncoder) -> None:
        self._encoder = encoder

    @property
    def mteb_model_meta(self) -> Any:
        """The `ModelMeta`: name, revision (the encoder's fingerprint), width, window.

        Raises:
            MissingExtraError: mteb is not installed.
        """
        return _meta(self._encoder, suffix="", settings={})

    def encode(
        self,
        inputs: Iterable[Mapping[str, Any]],
        *,
        task_metadata: object,
        hf_split: str,
        hf_subset: str,
        prompt_type: str | None = None,
        batch_size: int | None = None,
        show_progress_bar: bool = False,
    ) -> Floats:
        """Encode batches of texts.

        Args:
            inputs: batches with the key "text", as mteb's loader makes them.
            task_metadata, hf_split, hf_subset: not looked at: a prompt is the checkpoint's own.
            prompt_type: "query", or "document", or None for tasks where neither is searched.
            batch_size: not looked at: batches are made by tokens.
            show_progress_bar: draw a bar on a terminal.

        Returns:
            (B, D) float32, unit-length rows.
        """
        del task_metadata, hf_split, hf_subset, batch_size
        texts = [text for batch in inputs for text in batch["text"]]
        if prompt_type == "query":
            return self._encoder.encode_queries(texts)
        found = self._encoder.iter_documents(texts, show_progress=show_progress_bar)
        vectors = [embedding.vector for embedding in found]
        return np.stack(vectors) if vectors else np.zeros((0, self._encoder.dim), np.float32)

    def similarity(self, embeddings1: Any, embeddings2: Any) -> Floats:
        """Return (N, M) cosines of (N, D) and (M, D) unit-length rows."""
        found: Floats = np.atleast_2d(_array(embeddings1)) @ np.atleast_2d(_array(embeddings2)).T
        return found

    def similarity_pairwise(self, embeddings1: Any, embeddings2: Any) -> Floats:
        """Return (N,) cosines of (N, D) and (N, D) unit-length rows."""
        found: Floats = np.einsum("nd,nd->n", _array(embeddings1), _array(embeddings2))
        return found


class MtebRetriever:
    """The whole retriever as a model: each corpus in a store in memory, searched as users do.

    Args:
        encoder: ours.
        mode: how to search, as in `Retriever`.
    """

    def __init__(self, encoder: LandmarkEncoder, *, mode: Mode = "auto") -> None:
        self._encoder = encoder
        self._mode: Mode = mode
        self._store: QdrantStore | None = None

    @property
    def mteb_model_meta(self) -> Any:
        """The `ModelMeta`; the mode is among the settings of the experiment.

        Raises:
            MissingExtraError: mteb is not installed.
        """
        return _meta(self._encoder, suffix="-retriever", settings={"mode": self._mode})

    def index(
        self,
        corpus: Iterable[Mapping[str, Any]],
        *,
        task_metadata: object,
        hf_split: str,
        hf_subset: str,
        encode_kwargs: Mapping[str, Any],
        num_proc: int | None = None,
    ) -> None:
        """Encode a corpus into a new store; the one before goes.

        Title and text are joined as mteb joins them, by a space.

        Raises:
            InputError: a document can't be stored; leaving it out would change the task. Blank
                ones can't be found, and are left out.
        """
        del task_metadata, hf_split, hf_subset, num_proc
        self.close()
        self._store = QdrantStore("mteb", encoder=self._encoder)
        documents = (Document(row["id"], _text(row), {_ID: row["id"]}) for row in corpus)
        report = self._store.add(documents, show_progress=_shows(encode_kwargs))
        for skipped in report.skipped:
            if skipped.is_error:
                raise InputError(f"mteb's corpus: {skipped.reason}")

    def search(
        self,
        queries: Iterable[Mapping[str, Any]],
        *,
        task_metadata: object,
        hf_split: str,
        hf_subset: str,
        top_k: int,
        encode_kwargs: Mapping[str, Any],
        top_ranked: Mapping[str, Sequence[str]] | None = None,
        num_proc: int | None = None,
    ) -> dict[str, dict[str, float]]:
        """Search for each query; where a task names the documents to rank, among those only.

        Returns:
            scores by document id, by query id.

        Raises:
            InputError: nothing was indexed.
        """
        del task_metadata, hf_split, hf_subset, num_proc
        if self._store is None:
            raise InputError("there is no corpus; mteb calls `index` before `search`")
        retriever = Retriever(self._store)
        found = {}
        with progress_bar("searching", None, show=_shows(encode_kwargs)) as advance:
            for row in queries:
                among = None if top_ranked is None else In(_ID, top_ranked[row["id"]])
                hits = retriever.search_documents(
                    _question(row), k=top_k, filter=among, mode=self._mode
                )
                found[str(row["id"])] = {hit.document_id: hit.score for hit in hits}
                advance(1)
        return found

    def close(self) -> None:
        """Let the store go."""
        if self._store is not None:
            self._store.close()
            self._store = None


def _text(row: Mapping[str, Any]) -> str:
    title = row.get("title") or ""
    return f"{title} {row['text']}".strip()


def _question(row: Mapping[str, Any]) -> str:
    if not isinstance(row["text"], str):
        raise InputError(
            f"query {row['id']!r} is {row['text']!r:.80}; expected a text, not a conversation"
        )
    return f"{row['text']} {row.get('instruction') or ''}".strip()


def _shows(encode_kwargs: Mapping[str, Any]) -> bool:
    return bool(encode_kwargs.get("show_progress_bar", False))


def _array(embeddings: Any) -> Floats:
    return np.asarray(embeddings, np.float32)  # also of a tensor on the CPU


def _meta(encoder: LandmarkEncoder, *, suffix: str, settings: Mapping[str, object]) -> Any:
    models = require_extra("mteb.models.model_meta", "mteb", "the mteb adapter")
    return models.ModelMeta.create_empty().model_copy(
        update={
            "name": f"lmk-rag/{Path(encoder.name).name}{suffix}",
            "revision": encoder.fingerprint,  # weights and settings
            "embed_dim": encoder.dim,
            "framework": ["PyTorch"],
            "similarity_fn_name": models.ScoringFunction.COSINE,
            "use_instructions": encoder.config.query_prompt is not None,
            "experiment_kwargs": dict(settings) or None,
        }
    )
