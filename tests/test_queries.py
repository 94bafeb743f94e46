"""Queries in parts: shares, order, limits, and what they find that a vector does not."""

from dataclasses import replace

import numpy as np
import pytest

from lmk_rag import (
    Document,
    LandmarkConfig,
    LandmarkEncoder,
    QdrantStore,
    QueryEmbedding,
    Retriever,
)
from lmk_rag.errors import InputError
from lmk_rag.queries import in_parts, part_config
from lmk_rag.types import DocumentEmbedding

MODES = ["exact", "two-stage", "auto"]


def lengths(query):
    return np.linalg.norm(query.rows, axis=1)


def embedding(rows, tokens):
    """An embedding of a query whose stretches have these raw states."""
    rows = np.array(rows, np.float32)
    norms = np.linalg.norm(rows, axis=1)
    vector = np.array(tokens) @ rows
    return DocumentEmbedding(
        vector=(vector / np.linalg.norm(vector)).astype(np.float32),
        landmarks=rows / norms[:, None],
        norms=norms,
        spans=np.stack([np.arange(len(rows)), np.arange(len(rows)) + 1], 1),
        landmark_tokens=np.array(tokens),
        n_windows=1,
    )


def test_a_part_weighs_by_its_tokens_and_the_length_of_its_state():
    query = in_parts(embedding([[3, 0], [0, 2]], [2, 1]))
    # Weights 6 and 2 of 8; two parts and the vector have a third each on average.
    both = np.hypot(6, 2)
    expected = [[6 / both / 3, 2 / both / 3], [6 / 8 * 2 / 3, 0], [0, 2 / 8 * 2 / 3]]
    assert query.rows == pytest.approx(np.array(expected))
    assert lengths(query).sum() == pytest.approx(1)
    assert query.rows.dtype == query.vector.dtype == np.float32


def test_a_part_without_tokens_is_none_and_a_blank_query_is_its_vector():
    query = in_parts(embedding([[1, 0], [0, 1]], [1, 0]))
    assert query.rows == pytest.approx(np.array([[0.5, 0], [0.5, 0]]))
    blank = replace(embedding([[0.6, 0.8]], [1]), landmark_tokens=np.zeros(1))
    assert in_parts(blank).rows == pytest.approx(np.array([[0.6, 0.8]]))


@pytest.mark.parametrize(("parts", "rows"), [(1, 2), (63, 64), (64, 65), (65, 34), (200, 51)])
def test_many_parts_are_joined_with_their_neighbors(parts, rows):
    states = np.random.default_rng(1).normal(size=(parts, 8))
    query = in_parts(embedding(states, [2] * parts))
    assert query.rows.shape == (rows, 8)
    assert lengths(query).sum() == pytest.approx(1, abs=1e-5)
    summed = query.rows[1:].sum(axis=0)  # joined or not, the parts sum to the vector's direction
    assert summed / np.linalg.norm(summed) == pytest.approx(query.vector, abs=1e-5)


@pytest.mark.parametrize("pooling", ["mean", "cls"])
def test_the_encoder_gives_a_part_per_two_tokens_and_the_vector_of_the_query(
    st_folder, load, pooling
):
    texts = ["how do I restart the pump after an emergency stop", "pump", "", "the " * 300]
    with load(st_folder("bert", pooling=pooling), LandmarkConfig(max_length=48)) as encoder:
        queries = encoder.encode_query_parts(texts)
        counts = [e.n_tokens for e in encoder.encode_documents(texts)]
        vectors = encoder.encode_queries(texts)
        for query, vector in zip(queries[:3], vectors, strict=False):
            np.testing.assert_allclose(query.vector, vector, atol=1e-5)
        assert queries[3].vector @ vectors[3] > 0.95  # several windows, cut a little differently
        assert encoder.encode_query_parts([]) == []
        with pytest.raises(InputError, match="texts is 'pump'"):
            encoder.encode_query_parts("pump")
    assert len(queries[0].rows) == 1 + -(-counts[0] // 2) > 5
    assert len(queries[1].rows) == 1 + -(-counts[1] // 2)
    assert len(queries[2].rows) == 1
    assert len(queries[3].rows) == 1 + 50  # 150 parts, three to a row
    for query in queries:
        assert query.rows.shape[1] == 32
        assert lengths(query).sum() == pytest.approx(1, abs=1e-5)
        assert query.rows[0] * len(query.rows) == pytest.approx(query.vector, abs=1e-5)


def test_an_inserted_landmark_counts_once_however_many_its_tokens():
    query = in_parts(embedding([[3, 0], [0, 1]], [8, 1]), by_tokens=False)
    assert query.rows[1:] == pytest.approx(np.array([[3 / 4, 0], [0, 1 / 4]]) * 2 / 3)


def test_where_landmarks_are_inserted_a_part_is_the_stretch_of_one(bert):
    text = "how do I restart the pump after an emergency stop " * 3
    (query,) = bert.encode_query_parts([text])
    assert bert.pooling == "lmk"
    assert len(query.rows) == 1 + bert.encode_documents([text])[0].n_landmarks > 2
    np.testing.assert_allclose(query.vector, bert.encode_queries([text])[0], atol=1e-5)
    summed = query.rows[1:].sum(axis=0)  # the vector is the mean of the landmarks' states
    assert summed / np.linalg.norm(summed) == pytest.approx(query.vector, abs=1e-5)
    config = LandmarkConfig(granularity=8)
    assert part_config(config, inserts_landmarks=True) is config
    assert part_config(config, inserts_landmarks=False).granularity == 2


@pytest.mark.parametrize("mode", MODES)
def test_two_halves_of_a_question_are_found_in_two_places(word_encoder, mode):
    """Where one landmark answers the first half and another the second."""
    texts = {
        "both": "pump pump pump pump. " + "x y z w. " * 3 + "gauge gauge gauge gauge.",
        "mixed": "pump gauge red blue. x y z w. x y z w.",
    }
    with QdrantStore("docs", encoder=word_encoder(k=4, dim=64)) as store:
        store.add(Document(id_, text) for id_, text in texts.items())
        retriever = Retriever(store)
        query = "pump pump pump pump gauge gauge gauge gauge"
        (parts,) = store.encoder.encode_query_parts([query])
        by_text = retriever.search_documents(query, mode=mode)
        assert [hit.document_id for hit in by_text] == ["both", "mixed"]
        assert retriever.search_documents(parts, mode=mode) == by_text
        (vector,) = store.encoder.encode_queries([query])
        best = max(float(vector @ row) for row in store.encoder.encode_documents(
            [texts["both"]])[0].landmarks)  # fmt: skip
        by_vector = {h.document_id: h.score for h in retriever.search_documents(vector, mode=mode)}
        assert by_vector["both"] == pytest.approx(best, abs=1e-3)
        assert by_text[0].score == pytest.approx((best + 1 + 1) / 3, abs=1e-3)


def test_a_passage_scores_by_what_it_shows(word_encoder):
    text = "pump pump pump pump. " + "x y z w. " * 3 + "gauge gauge gauge gauge."
    with QdrantStore("docs", encoder=word_encoder(k=4, dim=64)) as store:
        store.add([Document("a", text)])
        retriever = Retriever(store)
        query = "pump pump pump pump gauge gauge gauge gauge"
        (whole,) = retriever.search(query)
        assert whole.text == text
        (hit,) = retriever.search_documents(query)
        assert whole.score == pytest.approx(hit.score, abs=1e-6)
        first, second = retriever.search(query, passage_tokens=4)
        assert {first.text.split()[0], second.text.split()[0]} == {"pump", "gauge"}
        assert first.score == pytest.approx(hit.score, abs=1e-6)  # the best one has the document's
        (parts,) = store.encoder.encode_query_parts([query])
        shown = store.encoder.encode_documents([second.text])[0].landmarks
        expected = float((parts.rows @ shown.T).max(axis=1).sum())
        assert second.score == pytest.approx(expected, abs=1e-3)
        assert second.score < hit.score - 0.2


@pytest.mark.parametrize("mode", [*MODES, "document", "hybrid"])
def test_passages_come_in_the_order_of_documents_and_more_begin_with_the_same(word_encoder, mode):
    rng = np.random.default_rng(8)
    vocabulary = [f"w{i}" for i in range(40)]
    with QdrantStore("docs", encoder=word_encoder(k=4)) as store:
        store.add(
            Document(f"d{i}", ". ".join(" ".join(rng.choice(vocabulary, size=6)) for _ in range(9)))
            for i in range(25)
        )
        retriever = Retriever(store)
        for _ in range(10):
            query = " ".join(rng.choice(vocabulary, size=8))
            hits = retriever.search_documents(query, k=25, mode=mode)
            found = retriever.search(query, k=60, mode=mode, passage_tokens=8)
            first = {}
            for passage in found:
                first.setdefault(passage.document_id, passage.score)
            assert list(first.items()) == [(h.document_id, pytest.approx(h.score)) for h in hits]
            for k in (1, 2, 7, 30):
                fewer = retriever.search(query, k=k, mode=mode, passage_tokens=8)
                assert fewer == found[:k]


@pytest.mark.parametrize(
    ("rows", "what"),
    [
        (np.zeros((0, 32)), r"shape \(0, 32\); expected \(P, 32\)"),
        (np.ones((2, 31)), r"shape \(2, 31\)"),
        (np.ones(32), r"shape \(32,\)"),
        (np.full((1, 32), np.nan), "sum to nan; expected 1"),
        (np.eye(32)[:3], r"sum to 3; expected 1, .* divide each row by the sum"),
        ([["a"] * 32], r"rows are \[\['a'.*expected numbers"),
        ([[1.0], [1.0, 2.0]], "expected numbers"),
    ],
    ids=str,
)
def test_rows_that_are_none_are_refused(word_encoder, rows, what):
    with QdrantStore("docs", encoder=word_encoder()) as store:
        query = QueryEmbedding(np.ones(32, np.float32), rows)
        with pytest.raises(InputError, match=what):
            Retriever(store).search(query)
        with pytest.raises(InputError, match="the query vector has shape"):
            Retriever(store).search(QueryEmbedding(np.ones(31), np.eye(32)[:1]))


def test_hybrid_search_takes_parts_with_words(word_encoder):
    with QdrantStore("docs", encoder=word_encoder()) as store:
        store.add([Document("1", "red apple pie"), Document("2", "green pear tart")])
        retriever = Retriever(store)
        (parts,) = store.encoder.encode_query_parts(["apple pie"])
        by_text = retriever.search("apple pie", mode="hybrid")
        assert retriever.search(parts, mode="hybrid", words="apple pie") == by_text
        with pytest.raises(InputError, match="needs its words too"):
            retriever.search(parts, mode="hybrid")


def test_the_default_model_reads_a_question_in_parts():
    with LandmarkEncoder(device="cpu", dtype="float32") as encoder:
        (query,) = encoder.encode_query_parts(["How do I restart the pump?"])
        np.testing.assert_allclose(
            query.vector, encoder.encode_queries(["How do I restart the pump?"])[0], atol=1e-5
        )
        assert query.rows.shape == (1 + 4, 384)  # seven tokens
        assert lengths(query).sum() == pytest.approx(1, abs=1e-5)
