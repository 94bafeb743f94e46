"""Methods on a set: each equals what the plain formula gives, and nothing is encoded twice."""

import numpy as np
import pytest

from lmk_rag import LandmarkConfig, QdrantStore
from lmk_rag.errors import ConfigError, InputError
from lmk_rag.evaluation import Answer, RetrievalSet, parse_methods
from lmk_rag.evaluation.answers import is_covered, tokens_inside, tokens_touching, within
from lmk_rag.evaluation.baseline import Baseline
from lmk_rag.evaluation.cache import ArrayCache, blocks, key_of
from lmk_rag.evaluation.session import SetSession
from lmk_rag.fusion import Fusion, fuse
from lmk_rag.types import Document

pytest.importorskip("ir_measures", reason="the extra eval is not installed")
pytest.importorskip("bm25s", reason="the extra eval is not installed")

TEXTS = {
    "pumps": "The pump of station V-7 stops when the valve closes, and nobody restarts it. " * 6,
    "parts": "Write between the parts; then leave the rest of it alone. " * 5,
    "words": "Long text with many words, padding test words. " * 12,
    "short": "Real text about pumps! Is it?",
}
QUERIES = {"q1": "the pump of station V-7", "q2": "leave the rest alone", "q3": "text about pumps"}
QRELS = {"q1": {"pumps": 1}, "q2": {"parts": 1}, "q3": {"short": 2, "pumps": 1}}


@pytest.fixture(scope="module")
def data():
    documents = tuple(Document(id_, text) for id_, text in TEXTS.items())
    start = TEXTS["pumps"].index("valve")
    answers = (Answer("q1", "pumps", start, start + 5), Answer("q3", "short", 16, 21))
    return RetrievalSet("toy", documents, QUERIES, QRELS, answers)


@pytest.fixture(scope="module")
def base(st_folder):
    return Baseline(st_folder("bert"), device="cpu", dtype="float32")


@pytest.fixture
def session(data, bert, base, tmp_path):
    session = SetSession(data, encoder=bert, base=base, cache=ArrayCache(tmp_path / "cache"))
    yield session
    session.close()


def evaluate(session, names):
    return {method.name: session.evaluate(method) for method in parse_methods(names)}


def order(scores):
    return [sorted(of, key=lambda id_: -of[id_]) for of in scores.values()]


def assert_scores(session, method, expected):
    found = session.runs[method].scores
    assert list(found) == list(QUERIES)
    rows = [[of[id_] for id_ in TEXTS] for of in found.values()]
    np.testing.assert_allclose(rows, expected, rtol=0, atol=1e-5)


def test_our_scores_are_cosines_with_the_document_and_its_best_landmark(session, bert):
    evaluate(session, "document,landmarks,mixed,retriever")
    queries = bert.encode_queries(list(QUERIES.values()))
    embeddings = bert.encode_documents(list(TEXTS.values()))
    documents = np.array([[q @ e.vector for e in embeddings] for q in queries])
    landmarks = np.array([[(e.landmarks @ q).max() for e in embeddings] for q in queries])
    assert_scores(session, "document", documents)
    assert_scores(session, "landmarks", landmarks)
    assert_scores(session, "mixed", (documents + landmarks) / 2)
    assert order(session.runs["retriever"].scores) == order(session.runs["landmarks"].scores)


@pytest.mark.filterwarnings("ignore:text 0.* did not fit the window")
def test_base_scores_are_those_of_the_cut_text_and_of_isolated_pieces(session, base):
    evaluate(session, "cut@32,chunk-max@16,chunk-mean@16,chunk-max@16/4")
    encoder = base.encoder(32)
    queries = encoder.encode_queries(list(QUERIES.values()))
    cut = np.stack([e.vector for e in encoder.encode_documents(list(TEXTS.values()))])
    assert_scores(session, "cut@32", queries @ cut.T)

    def pieces(text):  # of 16 tokens, at word boundaries, each encoded alone
        found, start = [], 0
        offsets = base.offsets(text)
        while start < len(offsets):
            end = min(start + 16, len(offsets))
            while end < len(offsets) and text[offsets[end, 0] - 1 : offsets[end, 0] + 1].isalpha():
                end -= 1
            found.append(text[offsets[start, 0] : offsets[end - 1, 1]])
            start = end
        return np.stack([e.vector for e in base.encoder(64).encode_documents(found)])

    rows = [pieces(text) for text in TEXTS.values()]
    best = np.array([[(own @ query).max() for own in rows] for query in queries])
    means = np.stack([own.mean(axis=0) / np.linalg.norm(own.mean(axis=0)) for own in rows])
    assert_scores(session, "chunk-max@16", best)
    assert_scores(session, "chunk-mean@16", queries @ means.T)
    overlapping = session.encodings["pieces@16/4"]
    assert overlapping.tokens > session.encodings["pieces@16"].tokens
    assert session.encodings["pieces@16"].truncated == 0
    assert session.encodings["cut@32"].truncated == 3


def test_a_query_longer_than_the_pieces_is_read_whole(data, base):
    queries = {"q1": "the pump of station seven stops when the valve closes " * 4}
    long = RetrievalSet("toy", data.documents, queries, {"q1": {"pumps": 1}}, ())
    session = SetSession(long, encoder=None, base=base, cache=ArrayCache(None))
    evaluate(session, "chunk-max@16")
    (query,) = base.encoder(64).encode_queries([queries["q1"]])
    with pytest.warns(UserWarning, match="text 0 did not fit the window of 18 tokens"):
        (cut,) = base.piece_encoder(16).encode_documents([queries["q1"]])
    assert query @ cut.vector < 0.999
    best = session.runs["chunk-max@16"].scores["q1"]["short"]
    piece = base.encoder(64).encode_documents([TEXTS["short"]])[0]
    assert piece.n_tokens <= 16
    assert best == pytest.approx(float(query @ piece.vector), abs=1e-5)


def test_a_fusion_with_words_joins_scores_as_hybrid_does_in_either_order(session):
    found = evaluate(session, "chunk-max@16+bm25,bm25+chunk-max@16,bm25,landmarks+bm25")
    assert found["chunk-max@16+bm25"].encodings == ("pieces@16",)
    assert found["landmarks+bm25"].encodings == ("ours",)
    evaluate(session, "chunk-max@16")
    cosines, words = (session.runs[name].scores["q1"] for name in ("chunk-max@16", "bm25"))
    expected = fuse(cosines, words, Fusion())
    for name in ("chunk-max@16+bm25", "bm25+chunk-max@16"):
        assert session.runs[name].scores["q1"] == pytest.approx(expected, abs=1e-5)


def test_a_fusion_of_other_rankings_goes_by_ranks(session):
    evaluate(session, "chunk-max@16,document,chunk-max@16+document,retriever+bm25")
    ranks = [order(session.runs[name].scores)[0] for name in ("chunk-max@16", "document")]
    fused = session.runs["chunk-max@16+document"].scores["q1"]
    expected = sum(61 / (61 + rank.index("pumps")) for rank in ranks) / 2
    assert fused["pumps"] == pytest.approx(expected, abs=1e-6)
    assert max(session.runs["retriever+bm25"].scores["q1"].values()) <= 1


def test_what_a_fusion_rests_on_keeps_its_own_time(session):
    found = evaluate(session, "retriever+bm25,retriever")
    assert 0 < found["retriever"].seconds <= found["retriever+bm25"].seconds


def test_words_are_those_of_the_store_and_fuse_like_bm25(session, bert):
    found = evaluate(session, "words,chunk-max@16,words+chunk-max@16")
    assert found["words"].encodings == ("ours",)
    with QdrantStore("words", encoder=bert) as store:
        store.add(session.data.documents)
        for query_id, query in QUERIES.items():
            hits = store.search_words(query, limit=9)
            assert session.runs["words"].scores[query_id] == pytest.approx(
                {hit.document_id: hit.score for hit in hits}
            )
    for query_id in QUERIES:
        cosines, words, fused = (
            session.runs[name].scores[query_id]
            for name in ("chunk-max@16", "words", "words+chunk-max@16")
        )
        assert fused == pytest.approx(fuse(cosines, words, Fusion()), abs=1e-5)


def test_hybrid_fuses_the_landmarks_with_the_words_of_the_query(session, bert):
    found = evaluate(session, "hybrid,retriever")
    assert found["hybrid"].encodings == ("ours",)
    assert list(found["hybrid"].answer_recall) == ["256 x 1", "256 x 2"]
    store = QdrantStore("words", encoder=bert)  # its BM25 is not that of bm25s
    store.add(session.data.documents)
    for query_id, query in QUERIES.items():
        matches = {hit.document_id: hit.score for hit in store.search_words(query, limit=9)}
        cosines = session.runs["retriever"].scores[query_id]
        expected = fuse(cosines, matches, Fusion())
        assert session.runs["hybrid"].scores[query_id] == pytest.approx(expected, abs=2e-5)
    store.close()


def test_a_blank_query_finds_nothing_by_words(data, bert, base):
    queries, qrels = QUERIES | {"q4": " \n"}, QRELS | {"q4": {"words": 1}}
    answers = (Answer("q4", "words", 0, 4),)
    blank = RetrievalSet("toy", data.documents, queries, qrels, answers)
    session = SetSession(blank, encoder=bert, base=base, cache=ArrayCache(None))
    found = evaluate(session, "hybrid")["hybrid"]
    assert session.runs["hybrid"].scores["q4"] == {}
    assert session.per_query["hybrid"]["nDCG@10"]["q4"] == 0
    assert found.answer_recall["256 x 1"]["1024"] == 0
    session.close()


def test_results_carry_metrics_groups_and_answers(session):
    found = evaluate(session, "bm25,retriever,chunk-max@16")
    assert found["bm25"].queries == 3
    assert found["bm25"].scores["R@100"] == pytest.approx(5 / 6)  # "pump" is not "pumps"
    assert found["bm25"].answer_recall == {}
    (group,) = found["bm25"].by_length
    assert (group.name, group.queries) == ("0-256", 3)
    # Everything fits in the largest budget.
    assert found["chunk-max@16"].answer_recall["pieces"]["1024"] == 1.0
    assert list(found["retriever"].answer_recall) == ["256 x 1", "256 x 2"]
    assert found["retriever"].answer_recall["256 x 2"]["1024"] == 1.0
    assert found["retriever"].notes == ("mode auto searched exact",)


def test_documents_that_the_store_refuses_are_told(data, bert):
    documents = (*data.documents, Document("blank", " \n"))
    session = SetSession(
        RetrievalSet("toy", documents, QUERIES, QRELS),
        encoder=bert,
        base=None,
        cache=ArrayCache(None),
    )
    (result,) = evaluate(session, "retriever").values()
    assert result.notes == ("mode auto searched exact", "1 documents are not in the store")
    session.close()


def test_a_cache_gives_the_same_run_without_encoding(data, bert, base, tmp_path, monkeypatch):
    names = "document,landmarks,cut@32,chunk-max@16,retriever"
    cache = ArrayCache(tmp_path / "cache")
    first = SetSession(data, encoder=bert, base=base, cache=cache)
    evaluate(first, names)
    first.close()
    assert not any(cost.cached for cost in first.encodings.values())

    def refuse(*args):
        raise AssertionError("encoded again")

    monkeypatch.setattr(type(bert), "encode_documents", refuse)
    again = SetSession(data, encoder=bert, base=base, cache=cache)
    evaluate(again, names)
    again.close()
    assert again.runs == first.runs
    assert all(cost.cached for cost in again.encodings.values())
    assert {n: (c.tokens, c.seconds) for n, c in again.encodings.items()} == {
        n: (c.tokens, c.seconds) for n, c in first.encodings.items()
    }


def test_an_interrupted_encoding_goes_on_at_its_block(data, bert, tmp_path, monkeypatch):
    cache = ArrayCache(tmp_path, block_chars=400)  # pumps; parts and words; short
    encode, asked = type(bert).encode_documents, []

    def interrupted(encoder, texts):
        asked.append(len(texts))
        if len(asked) == 2:
            raise KeyboardInterrupt
        return encode(encoder, texts)

    monkeypatch.setattr(type(bert), "encode_documents", interrupted)
    with pytest.raises(KeyboardInterrupt):
        evaluate(SetSession(data, encoder=bert, base=None, cache=cache), "landmarks")
    again = SetSession(data, encoder=bert, base=None, cache=cache)
    evaluate(again, "landmarks")
    whole = SetSession(data, encoder=bert, base=None, cache=ArrayCache(None))
    evaluate(whole, "landmarks")
    assert asked == [1, 2, 2, 1, 4]
    assert order(again.runs["landmarks"].scores) == order(whole.runs["landmarks"].scores)


def test_queries_are_encoded_once_per_encoder(data, bert, base, monkeypatch):
    counts: dict[str, int] = {}
    encode = type(bert).encode_queries

    def counted(encoder, texts):
        counts[encoder.fingerprint] = counts.get(encoder.fingerprint, 0) + 1
        return encode(encoder, texts)

    monkeypatch.setattr(type(bert), "encode_queries", counted)
    session = SetSession(data, encoder=bert, base=base, cache=ArrayCache(None))
    evaluate(
        session, "document,landmarks,mixed,retriever,chunk-mean@16,chunk-max@16,chunk-max@16/4"
    )
    session.close()
    assert list(counts.values()) == [1, 1]


def test_another_setting_is_another_entry_of_the_cache(data, model_folder, load, tmp_path):
    cache = ArrayCache(tmp_path)
    for k in (8, 16):
        with load(model_folder("bert"), LandmarkConfig(granularity=k)) as encoder:
            session = SetSession(data, encoder=encoder, base=None, cache=cache)
            evaluate(session, "landmarks")
            assert not session.encodings["ours"].cached


def test_a_damaged_cache_is_told(tmp_path):
    cache = ArrayCache(tmp_path)
    cache.save("k", {"a": np.arange(3)})
    assert cache.load("k")["a"].tolist() == [0, 1, 2]
    assert [path.name for path in tmp_path.iterdir()] == ["k.npz"]
    (tmp_path / "k.npz").write_bytes(b"half a file")
    with pytest.raises(InputError, match=r"k\.npz is damaged .*; delete it and run again"):
        cache.load("k")


def test_blocks_hold_every_text_once():
    texts = ["aaaa", "b", "cc", "dddddd", "e"]
    assert [texts[block] for block in blocks(texts, 5)] == [["aaaa", "b"], ["cc", "dddddd"], ["e"]]
    assert list(blocks([], 5)) == []
    assert key_of("ab", "c") != key_of("a", "bc")


def test_a_method_without_its_model_is_refused(data, bert, base):
    session = SetSession(data, encoder=None, base=None, cache=ArrayCache(None))
    for name, message in (("document", "needs an encoder"), ("cut@32", "needs the base model")):
        with pytest.raises(ConfigError, match=message):
            evaluate(session, name)


def test_a_budget_is_filled_best_first_and_the_last_is_cut():
    ranges = [("a", 0, 4), ("b", 2, 8), ("a", 4, 9)]
    assert within(ranges, 3) == [("a", 0, 3)]
    assert within(ranges, 4) == [("a", 0, 4)]
    assert within(ranges, 7) == [("a", 0, 4), ("b", 2, 5)]
    assert within(ranges, 99) == ranges


def test_an_answer_is_covered_by_one_range_or_by_several_that_meet():
    assert is_covered(("a", 3, 5), [("b", 0, 9), ("a", 3, 5)])
    assert is_covered(("a", 3, 6), [("a", 4, 9), ("a", 0, 4)])
    assert not is_covered(("a", 3, 6), [("a", 0, 4), ("a", 5, 9)])
    assert not is_covered(("a", 3, 6), [("a", 0, 5)])
    assert not is_covered(("a", 3, 6), [("b", 0, 9)])


def test_characters_are_turned_into_tokens():
    offsets = np.array([(0, 3), (4, 8), (8, 9), (10, 12)])
    assert tokens_inside(offsets, 0, 12) == (0, 4)
    assert tokens_inside(offsets, 4, 9) == (1, 3)
    assert tokens_inside(offsets, 1, 8) == (1, 2)
    assert tokens_inside(offsets, 5, 6) == (2, 2)
    assert tokens_touching(offsets, 5, 6) == (1, 2)
    assert tokens_touching(offsets, 3, 4) == (1, 1)
    assert tokens_touching(offsets, 2, 9) == (0, 3)
