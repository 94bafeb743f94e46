"""Segments and requests: server limits kept, nothing lost; field case FR-O-12."""

import functools
import itertools
import re

import numpy as np
import pytest
from qdrant_client import models
from qdrant_client.http.api.points_api import jsonable_encoder

from lmk_rag import Document, QdrantStore, Retriever
from lmk_rag.errors import InputError
from lmk_rag.lexical import WordRule, terms
from lmk_rag.plain_encoder import PlainEncoder
from lmk_rag.queries import vector_only
from lmk_rag.store import Eq
from lmk_rag.store.points import (
    DOCUMENT,
    LANDMARKS,
    SECTIONS,
    Segment,
    document_points,
    point_id,
    request_batches,
)
from lmk_rag.types import DocumentEmbedding

MIB = 2**20


@functools.cache
def random_rows(n, dim):
    rows = np.random.default_rng(0).normal(size=(n, dim)).astype(np.float32)
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


class WideEncoder:
    """One landmark per line, with random rows."""

    name, batch_tokens = "wide", 100_000

    def __init__(self, word_encoder, dim):
        self.dim, self.fingerprint = dim, f"wide/{dim}"
        self.config = word_encoder().config

    def encode_documents(self, texts):
        return [self._embed(text) for text in texts]

    def encode_queries(self, texts):
        return np.stack([random_rows(1, self.dim)[0] for _ in texts])

    def encode_query_parts(self, texts):
        return [vector_only(vector) for vector in self.encode_queries(texts)]

    def _embed(self, text):
        ends = [match.end() for match in re.finditer(r"\n", text)]
        spans = np.array(list(itertools.pairwise([0, *ends])))
        rows = random_rows(len(spans), self.dim)
        mean = rows.mean(axis=0)
        return DocumentEmbedding(
            vector=mean / np.linalg.norm(mean),
            landmarks=rows,
            norms=np.ones(len(rows), np.float32),
            spans=spans,
            landmark_tokens=np.ones(len(rows), np.int64),
            n_windows=1,
        )


def lines(n):
    return "".join(f"Line {i} of it\n" if i % 9 else f"Line {i}.\n\n"[:-1] for i in range(n))


def sparse(words):
    return models.SparseVector(indices=words.indices.tolist(), values=words.values.tolist())


def request_bytes(points):
    structs = [
        models.PointStruct(
            id=point.id,
            vector={name: vector.tolist() for name, vector in point.vectors.items()}
            | {name: sparse(words) for name, words in point.words.items()},
            payload=point.payload,
        )
        for point in points
    ]
    return len(jsonable_encoder(models.PointsList(points=structs)).encode("utf-8"))


def points_of(encoder, text, metadata=None, id_="a"):
    document = Document(id_, text, metadata or {})
    return document_points(document, metadata or {}, encoder.encode_documents([text])[0], "r1")


def test_field_case_a_long_document_is_split_under_the_limits(word_encoder):
    text = lines(1100)
    points = points_of(WideEncoder(word_encoder, 1024), text)
    assert len(points) > 1
    landmarks = np.concatenate([point.vectors[LANDMARKS] for point in points])
    assert np.array_equal(landmarks, random_rows(1100, 1024))
    assert "".join(point.payload["text"] for point in points) == text
    for point in points:
        assert point.vectors[LANDMARKS].size < 1_048_576
        assert point.vectors[SECTIONS].size < 1_048_576
        assert request_bytes([point]) < 32 * MIB


def test_field_case_six_hundred_documents_in_one_call_go_in_small_requests(word_encoder):
    encoder = WideEncoder(word_encoder, 768)
    text = lines(64)
    embedding = encoder.encode_documents([text])[0]
    points = (
        point
        for i in range(600)
        for point in document_points(Document(str(i), text), {}, embedding, f"r{i}")
    )
    sent, largest = [], 0
    for batch in request_batches(points, max_points=64):
        assert len(batch) <= 64
        sent += [point.payload["document_id"] for point in batch]
        if len(sent) < 100:  # the others are like these
            largest = max(largest, request_bytes(batch))
    assert sent == [str(i) for i in range(600)]
    assert 4 * MIB < largest < 32 * MIB


@pytest.mark.parametrize("dim", [2, 384, 4096])
def test_bytes_are_estimated_from_above(word_encoder, dim):
    text = '\x00\x1f \u2028 naïve 日本 🚀 "quoted" \\ end.\n' * 20
    metadata = {"long": "x" * 100_000, "日本": ["\x00"] * 50}
    for rows in (random_rows(20, dim), random_rows(20, dim) * 1e-5):
        embedding = WideEncoder(word_encoder, dim).encode_documents([text])[0]
        embedding.landmarks[:] = rows
        for point in document_points(
            Document("日本", text), metadata, embedding, "r1", words=WordRule()
        ):
            assert {name: len(words) for name, words in point.words.items()} == {
                "words": 8,
                "document_words": 8,
            }
            real = request_bytes([point])
            assert real <= point.n_bytes
            assert point.n_bytes < 2 * real + 1_000


def test_many_words_to_few_landmarks_are_split_under_the_limits_too(word_encoder):
    text = "".join(f"{' '.join(f'w{i}x{j}' for j in range(2_000))}\n" for i in range(400))
    encoder = WideEncoder(word_encoder, 2)
    document, embedding = Document("a", text), encoder.encode_documents([text])[0]
    points = document_points(document, {}, embedding, "r1", words=WordRule(pairs=False))
    assert len(points) > 1
    assert all(request_bytes([point]) <= point.n_bytes < 16 * MIB for point in points)
    assert sum(len(point.words["words"]) for point in points) == 800_000
    assert len(document_points(document, {}, embedding, "r1")) < len(points)


def test_a_very_long_document_counts_its_words_in_volumes(word_encoder):
    vocabulary = [f"w{i}" for i in range(300)]
    text = " ".join(np.random.default_rng(2).choice(vocabulary, size=150_000))
    document, encoder = Document("a", text), word_encoder(k=64, dim=2)
    embedding = encoder.encode_documents([text])[0]
    points = document_points(document, {}, embedding, "r1", words=WordRule())
    of = {i: p.words["document_words"] for i, p in enumerate(points) if "document_words" in p.words}
    assert list(of) == [0, 64, 128]  # segments of 1,024 words, as many as 65,536 words fill
    for first, end in itertools.pairwise([*of, len(points)]):
        stop = points[end].payload["start"] if end < len(points) else len(text)
        found = terms(text).vector(
            points[first].payload["start"], stop, WordRule().document, pairs=True
        )
        assert of[first].indices.tolist() == found.indices.tolist()
        assert of[first].values == pytest.approx(found.values)


def test_a_segment_of_very_many_words_has_none_as_a_document(word_encoder):
    text = "".join(f"{' '.join(f'w{i}x{j}' for j in range(2_000))}\n" for i in range(100))
    document = Document("a", text)
    embedding = WideEncoder(word_encoder, 2).encode_documents([text])[0]
    points = document_points(document, {}, embedding, "r1", words=WordRule())
    assert [len(point.words["words"]) > 131_072 for point in points] == [True, True]
    assert [list(point.words) for point in points] == [["words"], ["words"]]
    assert all(request_bytes([point]) <= point.n_bytes < 16 * MIB for point in points)


def test_a_long_text_of_one_landmark_is_stored_with_its_words():
    encoder = PlainEncoder(lambda t: [[1, 0]] * len(t), lambda t: [[1, 0]] * len(t), name="one")
    vocabulary = [f"word{i}" for i in range(5_000)]
    text = " ".join(np.random.default_rng(1).choice(vocabulary, size=300_000))
    with QdrantStore("docs", encoder=encoder) as store:
        assert store.add([Document("a", text + " needle"), Document("b", "a needle")]).added
        assert [hit.document_id for hit in store.search_words("needle", limit=9)] == ["b", "a"]
        (found,) = store.get(["a"])
        assert found.text == text + " needle"


def test_words_by_segment_alone_and_none_at_all(word_encoder):
    text = "One two. Two three."
    embedding = word_encoder().encode_documents([text])[0]

    def names(rule):
        (point,) = document_points(Document("a", text), {}, embedding, "r1", words=rule)
        return list(point.words)

    assert names(WordRule()) == ["words", "document_words"]
    assert names(WordRule(document=None)) == ["words"]
    assert names(None) == []


def test_a_small_document_is_one_segment_with_everything(word_encoder):
    text = "One two three four.\nFive six. Seven"
    (point,) = points_of(word_encoder(k=2), text, {"page": 3})
    assert point.payload == {
        "document_id": "a",
        "revision": "r1",
        "segment": 0,
        "n_segments": 1,
        "text": text,
        "start": 0,
        "line": 1,
        "first_landmark": 0,
        "spans": [0, 8, 8, 20, 20, 30, 30, 35],
        "tokens": [2, 2, 2, 1],
        "n_tokens": 7,
        "n_landmarks": 4,
        "metadata": {"page": 3},
    }
    assert point.vectors[DOCUMENT].shape == (32,)
    assert point.vectors[LANDMARKS].shape == (4, 32)
    assert point.vectors[SECTIONS].shape == (1, 32)
    assert point.id == point_id("a", "r1", 0)


def test_sections_are_means_of_4_to_8_neighboring_landmarks(word_encoder):
    encoder = word_encoder(k=1)
    text = "".join(f"word{i}. Up " for i in range(30))
    (point,) = points_of(encoder, text)
    sections, embedding = point.vectors[SECTIONS], encoder.encode_documents([text])[0]
    raw = embedding.landmarks * embedding.norms[:, None]
    at = 0
    for section in sections:
        fits = [
            n
            for n in range(1, min(8, 60 - at) + 1)
            if np.allclose(
                section,
                raw[at : at + n].sum(0) / np.linalg.norm(raw[at : at + n].sum(0)),
                atol=1e-5,
            )
        ]
        assert len(fits) == 1
        assert fits[0] >= 4 or at + fits[0] == 60
        at += fits[0]
    assert at == 60


def test_ids_depend_on_document_revision_and_segment_only():
    ids = {point_id(*key) for key in (("a", "r", 0), ("a", "r", 1), ("a", "s", 0), ("b", "r", 0))}
    assert len(ids) == 4
    assert point_id("a", "r", 0) == point_id("a", "r", 0)
    assert re.fullmatch(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", point_id("日/本 7", "r", 0))


def test_segments_read_back_what_was_written(word_encoder):
    text = lines(700)
    points = points_of(WideEncoder(word_encoder, 1024), text, {"x": [1]})
    segments = [Segment.from_payload(point.payload) for point in points]
    assert [s.segment for s in segments] == list(range(len(points)))
    assert {s.n_segments for s in segments} == {len(points)}
    first = 0
    for segment in segments:
        assert segment.first_landmark == first
        assert segment.line == text.count("\n", 0, segment.start) + 1
        assert segment.text == text[segment.start : segment.start + len(segment.text)]
        assert segment.spans[0, 0] == segment.start
        assert segment.metadata == {"x": [1]}
        first += len(segment.spans)
    assert first == 700


def test_a_payload_without_its_empty_metadata_reads_as_empty():
    payload = points_payload = {
        "document_id": "a", "revision": "r", "segment": 0, "n_segments": 1, "text": "t",
        "start": 0, "line": 1, "first_landmark": 0, "spans": [0, 1], "tokens": [1],
    }  # fmt: skip
    assert Segment.from_payload(payload).metadata == {}
    assert "metadata" not in points_payload


def test_a_piece_larger_than_a_request_is_refused(word_encoder):
    encoder = word_encoder()
    with pytest.raises(InputError, match="characters 0 to 3000000 make"):
        points_of(encoder, "\x00" * 3_000_000)  # six bytes each as JSON
    with pytest.raises(InputError, match="with words, vectors and metadata"):
        points_of(encoder, "short", {"huge": "x" * 17_000_000})


def test_segments_hold_at_most_1024_tokens_and_end_at_paragraphs_where_they_can(word_encoder):
    paragraph = "one two three four five six seven eight nine ten\n" * 9 + "\n"  # 90 tokens
    points = points_of(word_encoder(k=5), paragraph * 30)
    tokens = [sum(point.payload["tokens"]) for point in points]
    assert tokens == [990, 990, 720]
    assert [point.payload["start"] for point in points] == [
        0, 11 * len(paragraph), 22 * len(paragraph)
    ]  # fmt: skip
    assert [DOCUMENT in point.vectors for point in points] == [True, False, False]
    (small,) = points_of(word_encoder(k=5), "one two three four\n" * 256)  # 1,024 tokens
    assert sum(small.payload["tokens"]) == 1_024


def test_text_counts_for_the_size_of_a_segment(word_encoder):
    text = ("\x00" * 500_000 + " ") * 8  # six bytes each as JSON
    points = points_of(word_encoder(k=1), text)
    assert [len(point.payload["text"]) for point in points] == [1_000_002] * 4
    assert all(request_bytes([point]) < 16 * MIB for point in points)


@pytest.mark.filterwarnings("ignore:text 0 did not fit")
def test_the_tail_of_a_truncated_document_is_kept_as_text(model_folder, load):
    from lmk_rag import LandmarkConfig

    text = "one two three four five six seven. " * 40
    config = LandmarkConfig(granularity=8, on_overflow="truncate")
    with (
        load(model_folder("bert"), config) as encoder,
        QdrantStore("docs", encoder=encoder) as store,
    ):
        covered = int(encoder.encode_documents([text])[0].spans[-1, 1])
        assert covered < len(text)
        store.add([Document("a", text)])
        assert store.get(["a"])[0].text == text
        for passage in Retriever(store).search("seven", per_document=50):
            assert passage.text == text[passage.start : passage.end]
            assert passage.end <= covered


@pytest.fixture(scope="module")
def long_store(word_encoder, tmp_path_factory):
    """A store with one document of several segments and one small document."""
    encoder = WideEncoder(word_encoder, 1024)
    folder = tmp_path_factory.mktemp("store")
    with QdrantStore("docs", encoder=encoder, location=folder) as store:
        text = lines(1100)
        store.add([Document("long", text, {"kind": "long"}), Document("small", "Just this.\n")])
        yield store, text


def test_a_document_of_several_segments_counts_once_and_comes_back_whole(long_store):
    store, text = long_store
    assert store.count() == 2
    assert store.count(Eq("kind", "long")) == 1
    assert [document.text for document in store.get(["long", "small"])] == [text, "Just this.\n"]
    (info,) = store.documents(Eq("kind", "long"))
    assert (info.n_landmarks, info.n_tokens) == (1100, 1100)
    assert info.n_segments > 1


@pytest.mark.parametrize("mode", ["exact", "two-stage", "document"])
@pytest.mark.parametrize("landmark", [1, 399, 777, 1099])
def test_search_reaches_every_segment_with_offsets_of_the_document(long_store, landmark, mode):
    store, text = long_store
    query = random_rows(1100, 1024)[landmark]
    retriever = Retriever(store)
    passage = retriever.search(query, k=1, passage_tokens=5, mode=mode)[0]
    assert passage.document_id == "long"
    assert text[passage.best_start : passage.best_end].startswith(f"Line {landmark}")
    assert passage.text == text[passage.start : passage.end]
    assert passage.first_landmark <= landmark <= passage.last_landmark
    assert passage.line == text.count("\n", 0, passage.start) + 1
    assert passage.text.startswith(f"Line {passage.line - 1}")
    assert retriever.search_documents(query, mode=mode)[0].document_id == "long"


def test_passages_of_several_segments_do_not_overlap_and_come_best_first(long_store):
    store, _ = long_store
    found = Retriever(store).search(
        random_rows(1100, 1024)[500], k=40, per_document=40, passage_tokens=30
    )
    found = [passage for passage in found if passage.document_id == "long"]
    assert len(found) > 10
    taken = sorted((p.first_landmark, p.last_landmark) for p in found)
    assert all(a[1] < b[0] for a, b in itertools.pairwise(taken))
    assert [p.score for p in found] == sorted((p.score for p in found), reverse=True)


def numbered(n):
    """One word, then sentences of ten: landmarks of ten words end before the last of each."""
    return "Title " + " ".join(
        f"W{i}a w{i}b w{i}c w{i}d w{i}e w{i}f w{i}g w{i}h w{i}i w{i}j." for i in range(n)
    )


@pytest.mark.parametrize("mode", ["exact", "two-stage", "document", "hybrid"])
def test_a_passage_reaches_over_the_edges_of_segments(word_encoder, mode):
    text = numbered(500)  # 5,001 tokens
    with QdrantStore("docs", encoder=word_encoder(k=10, dim=256)) as store:
        store.add([Document("long", text)])
        segments = store._backend.scroll(None, fields=("start", "segment"))
        edges = sorted(record.payload["start"] for record in segments)[1:]
        assert len(edges) >= 4
        retriever = Retriever(store)
        for edge in edges:
            last = " ".join(text[:edge].split()[-10:])  # the last landmark of a segment
            (passage,) = retriever.search(last, k=1, passage_tokens=64, mode=mode)
            assert passage.text == text[passage.start : passage.end]
            assert passage.start < edge < passage.end
            assert passage.text.endswith(".")
            assert re.match(r"W\d+a ", passage.text)
            assert passage.line == 1
        (passage,) = retriever.search("w250e", k=1, passage_tokens=4_000, mode=mode)
        assert len(passage.text.split()) > 3_900
        (whole,) = retriever.search(last, k=9, per_document=9, passage_tokens=10**12, mode=mode)
        assert whole.text == text
        found = retriever.search(last, k=9, per_document=9, passage_tokens=64, mode=mode)
        taken = sorted((p.start, p.end) for p in found)
        assert len(taken) == 9
        assert all(a[1] <= b[0] for a, b in itertools.pairwise(taken))


def test_a_passage_that_takes_in_two_segments_leaves_the_second_best_to_another(word_encoder):
    text = numbered(500)
    encoder = word_encoder(k=10, dim=256)
    with QdrantStore("docs", encoder=encoder) as store:
        store.add([Document("long", text)])
        segments = store._backend.scroll(None, fields=("start", "segment"))
        edge = sorted(record.payload["start"] for record in segments)[3]
        far = " ".join(text.split()[100:110])
        texts = [" ".join(text[:edge].split()[-10:]), " ".join(text[edge:].split()[:10]), far]
        query = np.array([1.0, 0.95, 0.8], np.float32) @ encoder.encode_queries(texts)
        found = Retriever(store).search(query, k=2, per_document=2, passage_tokens=64)
        assert found[0].start < edge < found[0].end
        assert far in found[1].text


def test_two_stages_find_as_many_documents_as_there_are(word_encoder):
    documents = [Document("long", "pump valve " * 10_000)]
    documents += [Document(f"d{i}", "pump " + "pear " * 30) for i in range(3)]
    with QdrantStore("docs", encoder=word_encoder(k=8)) as store:
        store.add(documents)
        assert store.count_segments() > 20
        found = Retriever(store, candidates=1).search_documents("pump", k=4, mode="two-stage")
        assert found[0].document_id == "long"
        assert {hit.document_id for hit in found} == {"long", "d0", "d1", "d2"}


def test_deleting_removes_every_segment(word_encoder):
    encoder = WideEncoder(word_encoder, 1024)
    with QdrantStore("docs", encoder=encoder) as store:
        store.add([Document("long", lines(1100)), Document("small", "Just this.\n")])
        assert store._backend.count() > 2
        assert store.delete(["long"]) == 1
        assert store._backend.count() == store.count() == 1
        assert Retriever(store).search("x", k=9)[0].document_id == "small"


def test_a_document_that_shrinks_leaves_no_segment_behind(word_encoder):
    encoder = WideEncoder(word_encoder, 1024)
    with QdrantStore("docs", encoder=encoder) as store:
        store.add([Document("a", lines(1100))])
        assert store.add([Document("a", lines(3))]).updated == ["a"]
        assert store._backend.count() == 1
        assert store.get(["a"])[0].text == lines(3)
