"""Every engine and every mode against brute force, through adds, updates, deletes, reopening."""

from importlib.util import find_spec

import numpy as np
import pytest
from qdrant_client import QdrantClient, models

from lmk_rag import Document, QdrantStore, Retriever
from lmk_rag.queries import vector_only
from lmk_rag.store import And, Eq, Not, Range, backend, edge, local
from lmk_rag.store.backend import ClientBackend
from lmk_rag.store.points import DOCUMENT, LANDMARKS, SECTIONS

ENGINES = ["memory", "local", "server path"] + ["edge"] * (find_spec("qdrant_edge") is not None)
WORDS = [f"w{i}" for i in range(60)]
FILTERS = [
    None,
    Eq("group", 1),
    Not(Eq("group", 0)),
    And(Range("n", gte=10), Eq("even", True)),
    Eq("group", 9),
]


def make_documents(rng, ids):
    return [
        Document(
            f"d{i}",
            " ".join(rng.choice(WORDS, size=int(rng.integers(1, 80)))),
            {"group": int(i % 3), "n": int(i), "even": bool(i % 2 == 0)},
        )
        for i in ids
    ]


def open_store(engine, tmp_path, encoder):
    if engine == "memory":
        return QdrantStore("docs", encoder=encoder)
    if engine == "server path":  # the single query that a server gets, on the local engine
        store = QdrantStore("docs", encoder=encoder, client=QdrantClient(":memory:"))
        store._backend = ClientBackend(store._backend._inner.client, "docs", owned=True)
        return store
    return QdrantStore("docs", encoder=encoder, location=tmp_path / "store", engine=engine)


def passes(where, metadata):
    return {
        FILTERS[0]: True,
        FILTERS[1]: metadata["group"] == 1,
        FILTERS[2]: metadata["group"] != 0,
        FILTERS[3]: metadata["n"] >= 10 and metadata["even"],
        FILTERS[4]: False,
    }[where]


def oracle(encoder, documents, query, where, mode):
    """Id and score of every document that passes, best first."""
    scores = {}
    for document in documents:
        if passes(where, document.metadata):
            embedding = encoder.encode_documents([document.text])[0]
            rows = [embedding.vector] if mode == "document" else embedding.landmarks
            scores[document.id] = max(
                sum(float(a) * float(b) for a, b in zip(query, row, strict=True)) for row in rows
            )
    return sorted(scores.items(), key=lambda item: -item[1])


def check_against_oracle(store, documents, rng, tolerance):
    retriever = Retriever(store, candidates=1_000)
    for where in FILTERS:
        query = store.encoder.encode_queries([" ".join(rng.choice(WORDS, size=3))])[0]
        for mode in ("exact", "two-stage", "document", "auto"):
            expected = oracle(store.encoder, documents, query, where, mode)
            hits = retriever.search_documents(query, k=7, filter=where, mode=mode)
            assert len(hits) == min(7, len(expected))
            true = dict(expected)
            for hit, (_, score) in zip(hits, expected, strict=False):
                assert hit.score == pytest.approx(true[hit.document_id], abs=tolerance)
                assert hit.score == pytest.approx(score, abs=tolerance)
            passages = retriever.search(query, k=7, filter=where, mode=mode)
            assert [p.document_id for p in passages] == [h.document_id for h in hits]
            for passage, hit in zip(passages, hits, strict=True):
                assert passage.score == pytest.approx(hit.score, abs=tolerance)


@pytest.mark.parametrize("engine", ENGINES)
def test_search_equals_brute_force_after_every_kind_of_change(engine, tmp_path, word_encoder):
    rng = np.random.default_rng(3)
    encoder = word_encoder(k=5)
    tolerance = 2e-3 if engine == "edge" else 1e-5  # it stores landmarks in half precision
    store = open_store(engine, tmp_path, encoder)
    documents = {d.id: d for d in make_documents(rng, range(25))}
    check_against_oracle(store, [], rng, tolerance)  # empty
    store.add(documents.values())
    check_against_oracle(store, list(documents.values()), rng, tolerance)
    more = {d.id: d for d in make_documents(rng, range(20, 35))}  # ten new, five edited
    report = store.add(more.values())
    assert (len(report.added), len(report.updated)) == (10, 5)
    documents |= more
    check_against_oracle(store, list(documents.values()), rng, tolerance)
    gone = [f"d{i}" for i in range(0, 35, 4)]
    assert store.delete(gone) == len(gone)
    documents = {id_: d for id_, d in documents.items() if id_ not in gone}
    check_against_oracle(store, list(documents.values()), rng, tolerance)
    if engine in ("local", "edge"):
        store.close()
        store = open_store(engine, tmp_path, encoder)
        check_against_oracle(store, list(documents.values()), rng, tolerance)
        store.add(make_documents(rng, [0]))
        store.delete(["d0"])
        check_against_oracle(store, list(documents.values()), rng, tolerance)
    store.close()


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("using", [LANDMARKS, SECTIONS, DOCUMENT])
def test_points_are_grouped_by_document(engine, using, tmp_path, word_encoder):
    encoder = word_encoder(k=4, dim=2_048)  # at this width documents have several segments
    rng = np.random.default_rng(4)
    texts = [" ".join(rng.choice(WORDS, size=n)) for n in (1_500, 1_200, 60, 8)]
    with open_store(engine, tmp_path, encoder) as store:
        store.add(Document(f"d{i}", text) for i, text in enumerate(texts))
        assert store._backend.count() > 6
        query = vector_only(encoder.encode_queries([texts[0][:20]])[0])
        for per_document in (1, 2, 9):
            for limit in (1, 2, 9):
                found = store.search_points(
                    query, using=using, limit=limit, per_document=per_document
                )
                ids = [hit.document_id for hit in found]
                order = list(dict.fromkeys(ids))
                assert len(order) == min(limit, 4)
                best = [next(h.score for h in found if h.document_id == id_) for id_ in order]
                assert best == sorted(best, reverse=True)
                for id_ in order:
                    scores = [hit.score for hit in found if hit.document_id == id_]
                    assert len(scores) <= per_document
                    assert scores == sorted(scores, reverse=True)
                assert len({hit.id for hit in found}) == len(found)
                if using == DOCUMENT:  # only its first segment has it
                    assert len(found) == len(order)


# Local mode raises the limit of a prefetch under grouping to everything.
@pytest.mark.parametrize("engine", [engine for engine in ENGINES if engine != "server path"])
def test_two_stages_take_no_more_candidates_than_asked(engine, tmp_path, word_encoder):
    encoder = word_encoder(k=1, dim=64)
    filler = "f1 f2 f3 f4 f5 f6 f7"
    documents = [Document(f"near{i}", "pump pump pump pump") for i in range(4)]
    documents.append(Document("needle", f"{filler} pump {filler} {filler}"))
    with open_store(engine, tmp_path, encoder) as store:
        store.add(documents)
        query = vector_only(encoder.encode_queries(["pump"])[0])

        def search(n):
            found = store.search_points(query, using=LANDMARKS, limit=9, prefetch=(SECTIONS, n))
            return {hit.document_id for hit in found}

        assert search(5) == {d.id for d in documents}
        assert search(4) == {f"near{i}" for i in range(4)}  # sections blur the needle


@pytest.mark.parametrize("engine", ENGINES)
def test_auto_takes_two_stages_from_one_too_many_on(engine, tmp_path, word_encoder, monkeypatch):
    limit = {"edge": (edge, "_EXACT_POINTS"), "server path": (backend, "_EXACT_POINTS")}
    counted = 3 if engine in limit else 6  # segments there, landmarks in memory
    two_stages = []
    with open_store(engine, tmp_path, word_encoder(k=1)) as store:
        store.add(Document(f"d{i}", "pump valve") for i in range(3))
        search = store.search_points

        def seen(*args, prefetch, **options):
            two_stages.append(prefetch is not None)
            return search(*args, prefetch=prefetch, **options)

        monkeypatch.setattr(store, "search_points", seen)
        for most in (counted, counted - 1):
            monkeypatch.setattr(*limit.get(engine, (local, "_EXACT_ROWS")), most)
            assert len(Retriever(store).search_documents("pump")) == 3
    assert two_stages == [False, True]


def raw_delete(client, document_id):
    condition = models.FieldCondition(key="document_id", match=models.MatchValue(value=document_id))
    client.delete("docs", models.FilterSelector(filter=models.Filter(must=[condition])))


def test_writes_through_the_client_itself_are_noticed(word_encoder):
    client = QdrantClient(":memory:")
    store = QdrantStore("docs", encoder=word_encoder(), client=client)
    store.add([Document("a", "apples here"), Document("b", "boats there")])
    retriever = Retriever(store)
    for mode in ("exact", "two-stage", "document"):
        assert len(retriever.search_documents("apples", k=9, mode=mode)) == 2
    raw_delete(client, "a")
    for mode in ("exact", "two-stage", "document"):
        hits = retriever.search_documents("apples", k=9, mode=mode)
        assert [hit.document_id for hit in hits] == ["b"]
    assert store.count() == 1
    assert store.add([Document("a", "apples here")]).added == ["a"]
    assert retriever.search_documents("apples")[0].document_id == "a"
    client.close()


def test_the_memory_index_holds_rows_once(word_encoder):
    with QdrantStore("docs", encoder=word_encoder()) as store:
        store.add(Document(f"d{i}", f"text {i}") for i in range(9))
        Retriever(store).search("text")
        index = store._backend._index()
        (ids, rows, _), by_id = index._stacked[LANDMARKS], index._rows[LANDMARKS]
        assert len(ids) == 9
        assert all(np.shares_memory(by_id[id_], rows) for id_ in ids)
