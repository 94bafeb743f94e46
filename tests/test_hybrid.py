"""Hybrid search: every engine against brute force, old collections, vectors with words."""

import itertools
import math
import zlib
from collections import Counter
from importlib.util import find_spec

import numpy as np
import pytest
from qdrant_client import QdrantClient, models

from lmk_rag import Document, QdrantStore, Retriever
from lmk_rag.errors import CollectionMismatchError, ConfigError, InputError
from lmk_rag.fusion import Fusion
from lmk_rag.lexical import WordRule
from lmk_rag.store import And, CollectionOptions, Eq, Not, Range, points
from lmk_rag.store.backend import ClientBackend
from lmk_rag.store.opening import open_backend
from lmk_rag.store.points import WORDS
from lmk_rag.store.schema import collection_settings
from lmk_rag.store.word_search import search_words

ENGINES = ["memory", "local", "server path"] + ["edge"] * (find_spec("qdrant_edge") is not None)
VOCABULARY = [f"w{i}" for i in range(60)]
FILTERS = [None, Not(Eq("group", 0)), And(Range("n", gte=10), Eq("even", True)), Eq("group", 9)]
EXACT = CollectionOptions(float16=False)  # so that Edge's cosines are the oracle's
FUSIONS = [Fusion(), Fusion("rrf"), Fusion("rrf", words=0.3), Fusion("weighted", words=0.8)]


def make_documents(rng, ids):
    return [
        Document(
            f"d{i}",
            " ".join(rng.choice(VOCABULARY, size=int(rng.integers(1, 80)))),
            {"group": int(i % 3), "n": int(i), "even": bool(i % 2 == 0)},
        )
        for i in ids
    ]


def open_store(engine, tmp_path, encoder):
    if engine == "memory":
        return QdrantStore("docs", encoder=encoder)
    if engine == "server path":  # the query that a server gets, on the local engine
        store = QdrantStore("docs", encoder=encoder, client=QdrantClient(":memory:"))
        store._backend = ClientBackend(store._backend._inner.client, "docs", owned=True)
        return store
    folder = tmp_path / "store"
    return QdrantStore("docs", encoder=encoder, location=folder, engine=engine, options=EXACT)


def passes(where, metadata):
    return {
        FILTERS[0]: True,
        FILTERS[1]: metadata["group"] != 0,
        FILTERS[2]: metadata["n"] >= 10 and metadata["even"],
        FILTERS[3]: False,
    }[where]


def with_pairs(text):
    words = text.split()
    return words, list(itertools.pairwise(words))


BY_SEGMENT, BY_DOCUMENT = (0.9, 0.6, 512), (2.0, 0.82, 8_192)  # k1, b and the usual length


def share(count, length, k1, b, average):
    return count * (k1 + 1) / (count + k1 * (1 - b + b * length / average))


def bm25(documents, query, rules=(BY_SEGMENT, BY_DOCUMENT), pair_weight=0.5):
    """BM25 of every document with a word of the query, as the textbook has it.

    Each of these has one segment, so both sums differ by their rule alone.
    """
    texts = {d.id: Counter(itertools.chain(*with_pairs(d.text))) for d in documents}
    lengths = {d.id: len(d.text.split()) for d in documents}
    asked = [(1, word) for word in with_pairs(query)[0]]
    asked += [(pair_weight, pair) for pair in with_pairs(query)[1]]
    scores = {}
    for id_, counts in texts.items():
        score = 0.0
        for rule, (weight, term) in itertools.product(rules, asked):
            holding = sum(term in other for other in texts.values())
            idf = math.log((len(texts) - holding + 0.5) / (holding + 0.5) + 1)
            score += weight * idf * share(counts[term], lengths[id_], *rule)
        if score > 0:
            scores[id_] = score
    return scores


def max_sims(encoder, documents, query):
    rows = encoder.encode_query_parts([query])[0].rows.astype(np.float64)
    embeddings = encoder.encode_documents([d.text for d in documents])
    return {
        d.id: float((rows @ e.landmarks.T).max(axis=1).sum())
        for d, e in zip(documents, embeddings, strict=True)
    }


def ranks(scores):
    """1 + how many are clearly better."""
    return {a: 1 + sum(y > x + 1e-5 * abs(x) for y in scores.values()) for a, x in scores.items()}


def oracle(encoder, documents, query, where, fusion):
    passing = {d.id for d in documents if passes(where, d.metadata)}
    matches = {i: s for i, s in bm25(documents, query).items() if i in passing}
    near = {i: s for i, s in max_sims(encoder, documents, query).items() if i in passing}
    words = fusion.words
    if fusion.rule == "rrf":
        by = [{i: 61 / (60 + r) for i, r in ranks(scores).items()} for scores in (near, matches)]
    else:
        low = min(near.values(), default=0)
        by = [{i: near[i] - low for i in passing}, {i: matches.get(i, 0) for i in passing}]
        tops = [max(scores.values(), default=0) for scores in by]
        by = [
            {i: s / top if top else 0 for i, s in scores.items()}
            for scores, top in zip(by, tops, strict=True)
        ]
        # Standard scores: each counts by how many deviations lie between 0 and its best.
        near_far, word_far = (1 / np.std(list(s.values())) if any(s.values()) else 0 for s in by)
        near_far, word_far = (1 - words) * near_far, words * word_far
        words = word_far / (near_far + word_far) if passing else words
    return {i: (1 - words) * by[0].get(i, 0) + words * by[1].get(i, 0) for i in passing}


def check_against_oracle(store, documents, rng):
    for where in FILTERS:
        query = " ".join(rng.choice(VOCABULARY, size=3))
        passing = {d.id for d in documents if passes(where, d.metadata)}
        matches = {i: s for i, s in bm25(documents, query).items() if i in passing}
        found = store.search_words(query, limit=99, where=where)
        assert {hit.document_id: hit.score for hit in found} == pytest.approx(matches, rel=1e-5)
        scores = [hit.score for hit in found]
        assert scores == sorted(scores, reverse=True)
        best = store.search_words(query, limit=2, where=where)
        assert [hit.score for hit in best] == pytest.approx(scores[:2], rel=1e-5)
        for fusion in FUSIONS:
            expected = oracle(store.encoder, documents, query, where, fusion)
            retriever = Retriever(store, fusion=fusion)
            hits = retriever.search_documents(query, k=7, filter=where, mode="hybrid")
            for hit in hits:
                assert hit.score == pytest.approx(expected[hit.document_id], abs=1e-4)
                assert hit.metadata["n"] == int(hit.document_id[1:])
            top = sorted(expected.values(), reverse=True)[:7]
            assert [hit.score for hit in hits] == pytest.approx(top, abs=1e-4)
            passages = retriever.search(query, k=7, filter=where, mode="hybrid")
            assert [(p.document_id, p.score) for p in passages] == [
                (hit.document_id, hit.score) for hit in hits
            ]


@pytest.mark.parametrize("engine", ENGINES)
def test_hybrid_equals_brute_force_after_every_kind_of_change(engine, tmp_path, word_encoder):
    rng = np.random.default_rng(5)
    encoder = word_encoder(k=5)
    store = open_store(engine, tmp_path, encoder)
    documents = {d.id: d for d in make_documents(rng, range(25))}
    check_against_oracle(store, [], rng)  # empty
    store.add(documents.values())
    check_against_oracle(store, list(documents.values()), rng)
    more = {d.id: d for d in make_documents(rng, range(20, 35))}  # ten new, five edited
    store.add(more.values())
    documents |= more
    check_against_oracle(store, list(documents.values()), rng)
    gone = [f"d{i}" for i in range(0, 35, 4)]
    store.delete(gone)  # and no word is counted by what was deleted
    documents = {id_: d for id_, d in documents.items() if id_ not in gone}
    check_against_oracle(store, list(documents.values()), rng)
    if engine in ("local", "edge"):
        store.close()
        store = open_store(engine, tmp_path, encoder)
        check_against_oracle(store, list(documents.values()), rng)
    store.close()


@pytest.mark.parametrize("engine", ENGINES)
def test_texts_without_words_are_stored_and_count_for_nothing(engine, tmp_path, word_encoder):
    with open_store(engine, tmp_path, word_encoder()) as store:
        store.add([Document("marks", "?!? --- !"), Document("a", "pump"), Document("b", "valve")])
        found = store.search_words("pump", limit=9)
        idf = math.log((2 - 1 + 0.5) / (1 + 0.5) + 1)  # of two texts with words one has it
        expected = idf * (share(1, 1, *BY_SEGMENT) + share(1, 1, *BY_DOCUMENT))
        assert [(hit.document_id, hit.score) for hit in found] == [("a", pytest.approx(expected))]
        assert store.search_words("?!", limit=9) == store.search_words("absent", limit=9) == []
        hits = Retriever(store).search_documents("?!", k=9, mode="hybrid")  # landmarks alone
        plain = Retriever(store).search_documents("?!", k=9)
        assert [hit.document_id for hit in hits] == [hit.document_id for hit in plain]


@pytest.mark.parametrize("engine", ENGINES)
def test_a_document_of_several_segments_counts_once_by_its_best(engine, tmp_path, word_encoder):
    encoder = word_encoder(k=4, dim=2_048)  # at this width documents have several segments
    rng = np.random.default_rng(4)
    body = " ".join(rng.choice(VOCABULARY, size=1_500))
    texts = {"long": f"{body} needle {body} needle needle {body}", "short": "needle", "none": "x"}
    with open_store(engine, tmp_path, encoder) as store:
        store.add(Document(id_, text) for id_, text in texts.items())
        assert store._backend.count() > 6
        found = store.search_words("needle", limit=9)
        assert sorted(hit.document_id for hit in found) == ["long", "short"]
        best = {hit.document_id: hit.id for hit in found}["long"]
        segment = store.segments([best])[best]
        assert segment.text.count("needle") == 2
        points = store._backend.scroll(None, fields=["document_id"], vectors=[WORDS])
        stored = [r.words[WORDS] for r in points if r.payload["document_id"] == "long"]
        holding = [zlib.crc32(b"needle") in vector.indices for vector in stored]
        assert sum(holding) == 2
        hits = Retriever(store).search_documents("needle", k=9, mode="hybrid")
        assert sorted(hit.document_id for hit in hits) == ["long", "none", "short"]


@pytest.mark.parametrize("rule", ["rrf", "weighted"])
def test_words_beyond_the_depth_of_one_ranking_are_found(word_encoder, rule):
    with QdrantStore("docs", encoder=word_encoder()) as store:
        filler = [Document(f"f{i:03}", f"apple pie {i}") for i in range(150)]
        store.add([*filler, Document("part", "stone cliff AB-1234 wall bridge")])
        retriever = Retriever(store, candidates=1, fusion=Fusion(rule, words=0.5))
        near = [hit.document_id for hit in retriever.search_documents("apple pie 1234", k=100)]
        assert "part" not in near
        hits = retriever.search_documents("apple pie 1234", k=151, mode="hybrid")
        scores = {hit.document_id: hit.score for hit in hits}
        assert len(hits) == 151
        assert scores["part"] > 0.2
        if rule == "weighted":  # it has its cosine too, and it is the lowest: the words' share
            assert scores["part"] == pytest.approx(0.627, abs=1e-3)
            assert scores["part"] == max(scores.values())


OTHER_SCRIPTS = {
    "zh": ("水泵在紧急停机后重新启动。", "重新启动"),
    "ja": ("非常停止の後、ポンプを再起動する。", "再起動"),
    "ko": ("비상 정지 후 펌프를 다시 시작하십시오.", "펌프"),
    "th": ("หลังจากหยุดฉุกเฉินให้เริ่มปั๊มใหม่", "เริ่มปั๊ม"),
    "code": ("def restartPump(pump_id): ...", "pump id"),
    "de": ("Die STRASSE ist gesperrt.", "straße"),
}


@pytest.mark.parametrize("language", OTHER_SCRIPTS)
def test_words_of_every_script_are_found(word_encoder, language):
    with QdrantStore("docs", encoder=word_encoder()) as store:
        store.add(Document(name, text) for name, (text, _) in OTHER_SCRIPTS.items())
        found = store.search_words(OTHER_SCRIPTS[language][1], limit=9)
        assert [hit.document_id for hit in found] == [language]


def test_passages_of_hybrid_are_the_best_stretches_of_the_found_documents(word_encoder):
    text = "red apples here\n" * 9 + "one pump XZ-77 there\n" + "green pears now\n" * 9
    with QdrantStore("docs", encoder=word_encoder(k=3)) as store:
        store.add([Document("long", text), *(Document(f"f{i}", "a pump") for i in range(5))])
        found = Retriever(store).search(
            "pump XZ-77", k=9, mode="hybrid", per_document=2, passage_tokens=6
        )
        assert [p.document_id for p in found[:2]] == ["long", "long"]
        assert found[0].score == 1
        assert 0.2 < found[1].score < 0.4  # by its landmarks: it speaks of red apples
        assert "XZ-77" in found[0].text
        for p in found[:2]:
            assert p.text == text[p.start : p.end]
            assert p.line == text[: p.start].count("\n") + 1


@pytest.mark.parametrize("engine", ENGINES)
def test_a_name_deep_in_a_long_document_outweighs_half_of_it_in_a_short_one(
    engine, tmp_path, word_encoder
):
    filler = "the meeting went on and the chair asked for the next item on the list\n"
    needle = "the key of Iris Okafor G21 mandarin is 9\n"
    documents = [Document("long", filler * 500 + needle + filler * 500)]
    documents += [
        Document(f"{first} {last}", filler * 10 + f"the key of {first} {last} is 7\n")
        for first in ("Iris", "Ada", "Tess")
        for last in ("Okafor", "Ivanova", "Lund")
    ]
    with open_store(engine, tmp_path, word_encoder(k=8)) as store:
        store.add(documents)
        found = store.search_words("the key of Iris Okafor G21 mandarin", limit=20)
        assert [hit.document_id for hit in found[:2]] == ["long", "Iris Okafor"]
        assert len(found) == 10


def test_a_vector_needs_the_words_too(word_encoder):
    with QdrantStore("docs", encoder=word_encoder()) as store:
        store.add([Document("1", "red apple"), Document("2", "green pear")])
        retriever = Retriever(store)
        vector = store.encoder.encode_queries(["apple"])[0]
        for search in (retriever.search, retriever.search_documents):
            for words in (None, "", " \n"):
                with pytest.raises(InputError, match="the query is a vector only"):
                    search(vector, mode="hybrid", words=words)
            by_text = search("apple", mode="hybrid")
            by_both = search(vector * 3, mode="hybrid", words="apple")
            assert [(h.document_id, h.score) for h in by_both] == [
                (h.document_id, h.score) for h in by_text
            ]
            # Other words than the question's: each document is the first of one ranking.
            other = search("apple", mode="hybrid", words="pear")
            assert [(h.document_id, h.score) for h in other] == [("1", 0.5), ("2", 0.5)]
            with pytest.raises(InputError, match="words are given, which mode='auto'"):
                search("apple", words="apple")
            with pytest.raises(InputError, match="words is 5"):
                search("apple", mode="hybrid", words=5)
            assert search(" ", mode="hybrid") == search("", mode="hybrid", words="apple") == []
        with pytest.raises(ConfigError, match="fusion is 'rrf'"):
            Retriever(store, fusion="rrf")


def make_old(engine, tmp_path, encoder, schema=1):
    """A collection as an earlier version made it."""
    where = {"location": tmp_path / "store", "client": None, "engine": engine}
    if engine == "memory":
        where = {"location": "", "client": QdrantClient(":memory:"), "engine": "auto"}
    backend = open_backend("docs", **where, api_key=None, prefer_grpc=False, timeout=9)
    settings = collection_settings(encoder, EXACT)
    known = settings["metadata"]["lmk_rag"]
    del known["words"]
    known |= {"schema": schema, "average_words": 512}
    if schema == 3:
        known |= {"average_document_words": 8_192, "word_pairs": True}
    else:
        settings["vectors_config"]["landmarks"].distance = models.Distance.COSINE
        del settings["sparse_vectors_config"]["document_words"]
    if schema == 1:
        settings["sparse_vectors_config"] = {}
        del known["average_words"]
    backend.create(settings)
    backend.close()
    return where


@pytest.mark.parametrize("engine", [engine for engine in ENGINES if engine != "server path"])
def test_collections_without_words_do_all_but_hybrid(engine, tmp_path, word_encoder):
    encoder = word_encoder()
    where = make_old(engine, tmp_path, encoder)
    for _ in range(2):
        with QdrantStore("docs", encoder=encoder, **where) as store:
            store.add([Document("1", "red apple"), Document("2", "green pear")])
            retriever = Retriever(store)
            for mode in ("auto", "exact", "two-stage", "document"):
                assert retriever.search("apple", mode=mode)[0].document_id == "1"
            for search in (retriever.search, retriever.search_documents):
                with pytest.raises(CollectionMismatchError, match="holds no words") as caught:
                    search("apple", mode="hybrid")
                assert "Index the documents again" in str(caught.value)
            assert store.delete(["2"]) == 1


@pytest.mark.parametrize("engine", [engine for engine in ENGINES if engine != "server path"])
def test_collections_of_schema_3_count_words_by_its_rules(engine, tmp_path, word_encoder):
    encoder = word_encoder(k=5)
    documents = make_documents(np.random.default_rng(6), range(12))
    where = make_old(engine, tmp_path, encoder, schema=3)
    rules = (1.2, 0.75, 512), (1.2, 0.75, 8_192)
    for _ in range(2):
        with QdrantStore("docs", encoder=encoder, **where) as store:
            store.add(documents)
            assert store.takes_parts
            query = "w1 w2 w3 w4 w5 w6 w7"
            found = {h.document_id: h.score for h in store.search_words(query, limit=99)}
            assert found == pytest.approx(bm25(documents, query, rules), rel=1e-5)


@pytest.mark.parametrize("engine", [engine for engine in ENGINES if engine != "server path"])
def test_collections_of_schema_2_are_written_and_read_by_its_rules(engine, tmp_path, word_encoder):
    encoder = word_encoder(k=5)
    documents = make_documents(np.random.default_rng(6), range(12))
    where = make_old(engine, tmp_path, encoder, schema=2)
    for _ in range(2):
        with QdrantStore("docs", encoder=encoder, **where) as store:
            store.add(documents)
            assert not store.takes_parts
            query = "w1 w2 w3 w4 w5 w6 w7"
            found = {h.document_id: h.score for h in store.search_words(query, limit=99)}
            by_segment = bm25(documents, query, rules=((1.2, 0.75, 512),), pair_weight=0)
            assert found == pytest.approx(by_segment, rel=1e-5)
            retriever = Retriever(store)
            (vector,) = encoder.encode_queries([query])
            (parts,) = encoder.encode_query_parts([query])
            assert len(parts.rows) == 3
            by_vector = retriever.search_documents(vector, k=5)
            for asked in (query, parts):
                assert retriever.search_documents(asked, k=5) == by_vector
                assert retriever.search(asked) == retriever.search(vector)
            assert all(
                set(record.words) == {"words"}
                for record in store._backend.scroll(None, fields=(), vectors=[WORDS])
            )


@pytest.mark.parametrize("engine", ENGINES)
def test_words_far_apart_count_for_the_document_that_has_them(engine, tmp_path, word_encoder):
    filler = " ".join(VOCABULARY)
    apart = Document("apart", f"the pump {' '.join([filler] * 40)} the gauge")
    once = Document("once", f"the pump {' '.join([filler] * 40)} the cellar")
    with open_store(engine, tmp_path, word_encoder(k=16)) as store:
        store.add([apart, once, *(Document(f"f{i}", filler) for i in range(5))])
        assert store.count_segments() == 5 + 2 * 3
        found = store.search_words("pump gauge", limit=9)
        assert [hit.document_id for hit in found] == ["apart", "once"]
        idf = [
            math.log((n - h + 0.5) / (h + 0.5) + 1) for n, h in ((11, 2), (7, 2), (7, 1), (11, 1))
        ]
        assert found[0].score > found[1].score + 0.5 * idf[2]
        segment = store.segments([found[0].id])[found[0].id]
        assert "gauge" in segment.text  # the rarer of both words


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("where", FILTERS[:3])
def test_a_document_of_one_ranking_alone_has_its_score_in_the_other(
    engine, where, tmp_path, word_encoder
):
    rng = np.random.default_rng(9)
    documents = make_documents(rng, range(30))
    with open_store(engine, tmp_path, word_encoder(k=5)) as store:
        store.add(documents)
        for _ in range(5):
            query = " ".join(rng.choice(VOCABULARY, size=4))
            expected = {
                d.id: score
                for d in documents
                for id_, score in bm25(documents, query).items()
                if d.id == id_ and passes(where, d.metadata)
            }
            found = search_words(store._backend, WordRule(), query, limit=2, where=where, depth=2)
            assert len(found) == min(2, len(expected))
            for hit in found:  # perhaps not the best two, but with their whole score
                assert hit.score == pytest.approx(expected[hit.document_id], rel=1e-5)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_document_of_volumes_counts_by_its_best(engine, tmp_path, word_encoder, monkeypatch):
    monkeypatch.setattr(points, "_VOLUME_WORDS", 1_500)
    filler = " ".join(VOCABULARY)
    first, second = f"pump {' '.join([filler] * 16)} gauge", f"{' '.join([filler] * 18)} valve"
    with open_store(engine, tmp_path, word_encoder(k=16)) as store:
        store.add([Document("long", f"{first} {second}"), Document("other", filler)])
        volumes = [
            record.words["document_words"]
            for record in store._backend.scroll(None, fields=(), vectors=["document_words"])
            if "document_words" in record.words
        ]
        assert len(volumes) == 3
        both = store.search_words("pump gauge", limit=9)
        apart = store.search_words("pump valve", limit=9)
        assert [hit.document_id for hit in both] == [hit.document_id for hit in apart] == ["long"]
        assert both[0].score > apart[0].score


@pytest.mark.parametrize("engine", ENGINES)
def test_words_that_stand_together_count_more_than_words_apart(engine, tmp_path, word_encoder):
    texts = {
        "phrase": "a b c the user interface d e f",
        "apart": "a b user c the d interface e f",
        "reversed": "a b c the interface user d e f",
    }
    with open_store(engine, tmp_path, word_encoder()) as store:
        store.add(Document(id_, text) for id_, text in texts.items())
        found = {h.document_id: h.score for h in store.search_words("user interface", limit=9)}
        assert found["phrase"] > found["apart"] == pytest.approx(found["reversed"])
        idf = math.log((3 - 1 + 0.5) / (1 + 0.5) + 1)
        more = 0.5 * idf * (share(1, 9, *BY_SEGMENT) + share(1, 9, *BY_DOCUMENT))
        assert found["phrase"] - found["apart"] == pytest.approx(more, rel=1e-4)


def test_later_schemas_are_refused(word_encoder):
    client = QdrantClient(":memory:")
    settings = collection_settings(word_encoder(), CollectionOptions())
    settings["metadata"]["lmk_rag"]["schema"] = 5
    client.create_collection("docs", **settings)
    with pytest.raises(CollectionMismatchError, match="schema is 5 there and 4 here"):
        QdrantStore("docs", encoder=word_encoder(), client=client)
    client.close()


def test_an_old_collection_of_another_encoder_is_told_by_the_encoder(tmp_path, word_encoder):
    where = make_old("memory", tmp_path, word_encoder(k=4))
    with pytest.raises(CollectionMismatchError, match="granularity is 4 there and 5") as caught:
        QdrantStore("docs", encoder=word_encoder(k=5), **where)
    assert "schema" not in str(caught.value)


def test_a_server_counts_over_the_points_there_are(word_encoder):
    class Recording(QdrantClient):
        def query_points_groups(self, *args, **kwargs):
            self.asked = [*getattr(self, "asked", []), kwargs]
            return super().query_points_groups(*args, **kwargs)

    client = Recording(":memory:")
    store = QdrantStore("docs", encoder=word_encoder(), client=client)
    store.add([Document("a", "pump"), Document("b", "valve"), Document("c", "?!")])
    backend = ClientBackend(client, "docs", owned=False)
    backend.is_local = False
    store._backend = backend
    found = store.search_words("pump", limit=7, where=Not(Eq("n", 1)))
    assert [asked["using"] for asked in client.asked][::2] == ["words", "document_words"]
    for asked in client.asked[::2]:
        assert (asked["limit"], asked["group_size"]) == (400, 1)
        assert asked["query"].indices == [zlib.crc32(b"pump")]
        having = models.Filter(must=[models.HasVectorCondition(has_vector=asked["using"])])
        assert asked["search_params"].idf == models.IdfCorpusParams(corpus=having)
        assert asked["query_filter"] is not None
    idf = math.log((2 - 1 + 0.5) / (1 + 0.5) + 1)
    expected = idf * (share(1, 1, *BY_SEGMENT) + share(1, 1, *BY_DOCUMENT))
    assert [(hit.document_id, hit.score) for hit in found] == [("a", pytest.approx(expected))]
    client.close()


def test_documents_deleted_or_replaced_while_searching(word_encoder):
    with QdrantStore("docs", encoder=word_encoder()) as store:

        class Changing(QdrantStore):
            """Changes documents between finding and fetching, as another thread may."""

            def __init__(self):
                self.__dict__ = dict(store.__dict__)
                self.turn = 0

            def segments(self, ids):
                self.change()
                return super().segments(ids)

            def metadata(self, ids):
                self.change()
                return super().metadata(ids)

            def change(self):
                if not self.turn:
                    store.delete(["1"])
                    store.add([Document("2", "green apple of today")])
                self.turn += 1

        for name in ("search", "search_documents"):
            store.add([Document("1", "red apple"), Document("2", "green apple")])
            hits = getattr(Retriever(Changing()), name)("apple", k=9, mode="hybrid")
            assert [hit.document_id for hit in hits] == ["2"]


def test_writes_through_the_client_itself_are_noticed(word_encoder):
    client = QdrantClient(":memory:")
    store = QdrantStore("docs", encoder=word_encoder(), client=client)
    store.add([Document("a", "apples here"), Document("b", "apples there")])
    assert len(store.search_words("apples", limit=9)) == 2
    condition = models.FieldCondition(key="document_id", match=models.MatchValue(value="a"))
    client.delete("docs", models.FilterSelector(filter=models.Filter(must=[condition])))
    assert [hit.document_id for hit in store.search_words("apples", limit=9)] == ["b"]
    client.close()
