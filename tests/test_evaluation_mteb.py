"""Our encoder and retriever run as models of mteb, on a task made here; no network."""

import sys

import numpy as np
import pytest

pytest.importorskip("mteb", reason="the extra mteb is not installed")

import mteb
from datasets import Dataset
from mteb.abstasks.retrieval import AbsTaskRetrieval
from mteb.abstasks.task_metadata import TaskMetadata
from mteb.models.model_meta import ModelMeta
from mteb.models.models_protocols import EncoderProtocol, SearchProtocol

from lmk_rag import Retriever
from lmk_rag.errors import InputError, MissingExtraError
from lmk_rag.evaluation.mteb_adapter import MtebEncoder, MtebRetriever

CORPUS = {
    "d1": ("", "The pump of station V-7 stops when the valve closes. " * 6),
    "d2": ("Parts", "Write between the parts; then leave the rest alone. " * 5),
    "d3": ("", "Long text with many words, padding test words. " * 12),
    "d4": ("", "Real text about pumps! Is it?"),
}
QUERIES = {"q1": "the pump of station V-7", "q2": "leave the rest alone"}


class ToyTask(AbsTaskRetrieval):
    metadata = TaskMetadata(
        name="Toy",
        description="Four texts.",
        dataset={"path": "none", "revision": "1"},
        type="Retrieval",
        eval_langs=["eng-Latn"],
        main_score="ndcg_at_10",
    )

    def load_data(self, *args, **kwargs):
        self.dataset = {
            "default": {
                "test": {
                    "corpus": Dataset.from_list(
                        [{"id": i, "title": t, "text": x} for i, (t, x) in CORPUS.items()]
                    ),
                    "queries": Dataset.from_list(
                        [{"id": i, "text": x} for i, x in QUERIES.items()]
                    ),
                    "relevant_docs": {"q1": {"d1": 1}, "q2": {"d2": 1}},
                    "top_ranked": None,
                }
            }
        }
        self.data_loaded = True


def score(model):
    result = mteb.evaluate(model, ToyTask(), cache=None, show_progress_bar=False, co2_tracker=False)
    (task,) = result.task_results
    return task.scores["test"][0]


@pytest.fixture
def retriever(word_encoder):
    retriever = MtebRetriever(word_encoder(k=8))
    yield retriever
    retriever.close()


def test_the_protocols_are_those_of_mteb(bert):
    assert isinstance(MtebEncoder(bert), EncoderProtocol)
    assert not isinstance(MtebEncoder(bert), SearchProtocol)
    assert isinstance(MtebRetriever(bert), SearchProtocol)
    meta = MtebRetriever(bert, mode="exact").mteb_model_meta
    assert isinstance(meta, ModelMeta)
    assert meta.name == f"lmk-rag/{bert.name.rpartition('/')[2]}-retriever"
    assert meta.revision == bert.fingerprint
    assert meta.experiment_kwargs == {"mode": "exact"}


def test_mteb_scores_the_retriever(retriever):
    found = score(retriever)
    assert found["ndcg_at_10"] == 1.0
    assert found["mrr_at_10"] == 1.0


def test_mteb_scores_the_encoder_by_document_vectors(bert):
    texts = [f"{title} {text}".strip() for title, text in CORPUS.values()]
    documents = np.stack([e.vector for e in bert.encode_documents(texts)])
    cosines = bert.encode_queries(list(QUERIES.values())) @ documents.T
    ranks = [int((row > row[i]).sum()) for i, row in enumerate(cosines)]
    expected = np.mean([1 / np.log2(rank + 2) for rank in ranks])
    assert score(MtebEncoder(bert))["ndcg_at_10"] == pytest.approx(expected, abs=1e-5)


KEYWORDS = {"task_metadata": None, "hf_split": "test", "hf_subset": "default", "encode_kwargs": {}}


def rows(texts):
    return [{"id": id_, "text": text} for id_, text in texts.items()]


def test_hits_are_those_of_our_retriever(bert):
    model = MtebRetriever(bert)
    model.index(rows({id_: text for id_, (_, text) in CORPUS.items()}), **KEYWORDS)
    found = model.search(rows(QUERIES), top_k=2, **KEYWORDS)
    assert list(found) == ["q1", "q2"]
    hits = Retriever(model._store).search_documents(QUERIES["q1"], k=2)
    assert found["q1"] == {hit.document_id: hit.score for hit in hits}
    model.close()


def test_a_task_may_name_the_documents_to_rank(retriever):
    retriever.index(rows({id_: text for id_, (_, text) in CORPUS.items()}), **KEYWORDS)
    ranked = {"q1": ["d3", "d2"], "q2": ["d4"]}
    found = retriever.search(rows(QUERIES), top_k=10, top_ranked=ranked, **KEYWORDS)
    assert {q: set(of) for q, of in found.items()} == {"q1": {"d2", "d3"}, "q2": {"d4"}}


def test_another_corpus_replaces_the_first(retriever):
    retriever.index(rows({"a": "one"}), **KEYWORDS)
    retriever.index(rows({"b": "two", "blank": " "}), **KEYWORDS)
    assert set(retriever.search(rows({"q": "two"}), top_k=10, **KEYWORDS)["q"]) == {"b"}


def test_what_can_not_be_done_is_told(retriever):
    with pytest.raises(InputError, match="there is no corpus"):
        retriever.search(rows(QUERIES), top_k=1, **KEYWORDS)
    with pytest.raises(
        InputError, match=r"mteb's corpus: the id is '' .*expected a non-empty string"
    ):
        retriever.index([{"id": "", "text": "text"}], **KEYWORDS)
    retriever.index(rows({"a": "one"}), **KEYWORDS)
    with pytest.raises(InputError, match="expected a text, not a conv"):
        retriever.search(rows({"q": ["a", "b"]}), top_k=1, **KEYWORDS)


def test_similarities_are_cosines(bert):
    model = MtebEncoder(bert)
    rows_ = bert.encode_queries(["one", "two"])
    np.testing.assert_allclose(model.similarity(rows_, rows_).diagonal(), [1, 1], rtol=1e-5)
    np.testing.assert_allclose(model.similarity_pairwise(rows_, rows_), [1, 1], rtol=1e-5)
    assert model.similarity(rows_[0], rows_).shape == (1, 2)


def test_nothing_to_encode_is_no_rows(bert):
    empty = {"task_metadata": None, "hf_split": "test", "hf_subset": "default"}
    assert MtebEncoder(bert).encode([], **empty).shape == (0, 32)
    assert MtebEncoder(bert).encode([], prompt_type="query", **empty).shape == (0, 32)


def test_a_missing_extra_is_named(bert, monkeypatch):
    monkeypatch.setitem(sys.modules, "mteb.models.model_meta", None)
    monkeypatch.setitem(sys.modules, "mteb", None)
    with pytest.raises(MissingExtraError, match=r"needs `mteb`; install it with: .*\[mteb\]"):
        _ = MtebEncoder(bert).mteb_model_meta
