"""Adding documents: counts, streaming, skips, crashes; field cases FR-O-09, 10, 12, 19."""

import itertools
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from qdrant_client import QdrantClient

from lmk_rag import Document, QdrantStore, Retriever
from lmk_rag.errors import InputError, NonFiniteError, StoreError, TextTooLongError
from lmk_rag.plain_encoder import PlainEncoder
from lmk_rag.store import AddReport, Skipped


def documents(n, **metadata):
    return [Document(f"d{i}", f"Document {i} about topic{i}. It ends.", metadata) for i in range(n)]


@pytest.fixture
def encoder(word_encoder):
    return word_encoder()


@pytest.fixture
def store(encoder):
    with QdrantStore("docs", encoder=encoder) as store:
        yield store


def test_the_second_run_changes_and_encodes_nothing(store, encoder):
    first = store.add(documents(5))
    assert (first.added, first.updated, first.unchanged) == ([f"d{i}" for i in range(5)], [], [])
    assert len(encoder.encoded) == 5
    second = store.add(documents(5))
    assert (second.added, second.updated) == ([], [])
    assert second.unchanged == [f"d{i}" for i in range(5)]
    assert len(encoder.encoded) == 5
    assert store.count() == 5


def test_only_what_was_edited_is_encoded_again(store, encoder):
    store.add(documents(5))
    changed = documents(5)
    changed[1] = replace(changed[1], text="Something else now.")
    changed[3] = replace(changed[3], metadata={"page": 3})
    report = store.add(changed)
    assert report.updated == ["d1", "d3"]
    assert report.unchanged == ["d0", "d2", "d4"]
    assert encoder.encoded[5:] == ["Something else now.", changed[3].text]
    assert store.count() == store._backend.count() == 5
    assert store.get(["d1", "d3"]) == [changed[1], changed[3]]


def test_metadata_that_is_equal_after_cleaning_is_no_change(store):
    store.add([Document("a", "text", {"x": (1, np.float32(0.5)), "y": 2})])
    report = store.add([Document("a", "text", {"y": 2, "x": [1, 0.5]})])
    assert report.unchanged == ["a"]
    assert store.add([Document("a", "text", {"x": [1, 0.5], "y": 2.0})]).updated == ["a"]


def test_documents_that_swap_their_texts_are_both_replaced(store):
    store.add([Document("a", "alpha text"), Document("b", "beta text")])
    report = store.add([Document("a", "beta text"), Document("b", "alpha text")])
    assert report.updated == ["a", "b"]
    assert [d.text for d in store.get(["a", "b"])] == ["beta text", "alpha text"]
    assert store.count() == store._backend.count() == 2


def test_equal_texts_under_two_ids_stay_two_documents(store):
    store.add([Document("a", "alpha"), Document("b", "alpha")])
    assert store.count() == 2
    store.delete(["a"])
    assert [d.id for d in store.documents()] == ["b"]


def test_of_two_documents_with_one_id_the_later_counts(store):
    report = store.add([Document("a", "one"), Document("b", "x"), Document("a", "two")])
    assert (report.added, report.updated) == (["a", "b"], ["a"])
    assert store.get(["a"])[0].text == "two"
    assert store.count() == store._backend.count() == 2
    report = store.add([Document("a", "two"), Document("a", "two")])
    assert report.unchanged == ["a", "a"]


def test_field_case_any_string_is_an_id_and_numbers_are_skipped(store):
    given = [
        Document("reports/2024 q1.txt", "alpha"),
        Document(7, "beta"),
        Document("7", "gamma"),
        Document("\u00fcmlaut/\u540d.txt", "alpha", {"v": 2}),
        Document(" ", "blank id"),
        Document("a\x1fb\x00\n'\"", "odd id"),
        Document("x" * 5_000, "long id"),
    ]
    for _ in range(2):
        report = store.add(given)
        assert [s.document_id for s in report.skipped] == ["7"]
        assert "the id is 7 (int); expected a non-empty string" in report.skipped[0].reason
        assert store.count() == 6
    ids = [d.id for d in given if d.id != 7]
    assert [d.id for d in store.get(ids)] == ids
    assert sorted(d.id for d in store.documents()) == sorted(ids)


def test_field_case_blank_texts_are_skipped_and_not_errors(store):
    texts = ["", "   ", "\n\t\u00a0", "real text about pumps"]
    report = store.add(Document(str(i), text) for i, text in enumerate(texts))
    assert report.added == ["3"]
    assert [(s.document_id, s.reason, s.is_error) for s in report.skipped] == [
        (str(i), "the text is blank", False) for i in range(3)
    ]
    assert store.count() == 1
    (hit,) = Retriever(store).search_documents("pumps", k=4)
    assert hit.document_id == "3"
    assert np.isfinite(hit.score)


def test_field_case_bad_texts_are_skipped_by_name_and_the_others_stored(store):
    report = store.add(
        [
            Document("a", "ok"),
            Document("b", "bad \ud800 char"),
            Document("c", "nul \x00 byte"),
            Document("d", None),
            Document("e", 42),
            Document("bad \udcff id", "text"),
            Document("", "no id"),
            Document(None, "no id"),
            Document("f", "fine", {"set": {1}}),
            "no document",
            None,
        ]
    )
    assert report.added == ["a", "c"]
    assert all(s.is_error for s in report.skipped)
    reasons = {s.document_id: s.reason for s in report.skipped}
    assert list(reasons) == ["b", "d", "e", "bad ? id", "", "None", "f", "'no document'"]
    assert "lone surrogate '\\ud800' at character 4" in reasons["b"]
    assert "the text of 'd' is None" in reasons["d"]
    assert "the text of 'e' is 42" in reasons["e"]
    assert "lone surrogate" in reasons["bad ? id"]
    assert "metadata['set'] is a set" in reasons["f"]
    for reason in reasons.values():
        reason.encode("utf-8")
    assert [d.text for d in store.get(["a", "c"])] == ["ok", "nul \x00 byte"]
    checked = store.check([Document("b", "bad \ud800 char"), Document("a", "ok")])
    assert [(s.document_id, s.reason) for s in checked] == [("b", reasons["b"])]


@pytest.mark.parametrize("error", [TextTooLongError("too long"), NonFiniteError("NaN here")])
def test_a_text_that_cannot_be_encoded_keeps_no_other_from_being_stored(store, encoder, error):
    given = documents(9)
    store.add([Document("d4", "An older text.")])
    encoder.refuse[given[4].text] = error
    report = store.add(given)
    assert report.added == [f"d{i}" for i in range(9) if i != 4]
    (skipped,) = report.skipped
    assert skipped == Skipped("d4", f"document 'd4': {error}", is_error=True)
    assert store.get(["d4"])[0].text == "An older text."


def test_other_errors_of_the_encoder_come_through(store, encoder):
    encoder.refuse["bad"] = ConnectionError("no route")
    with pytest.raises(ConnectionError, match="no route"):
        store.add([Document("a", "bad")])


def test_an_encoder_that_loses_texts_is_an_error(store, encoder):
    encoder.encode_documents = lambda texts: []
    with pytest.raises(StoreError, match="'words' gave 0 embeddings for 2 texts"):
        store.add(documents(2))


def test_given_embeddings_are_used_and_checked(store, encoder):
    good = documents(3)
    embeddings = encoder.encode_documents([d.text for d in good])
    other = encoder.encode_documents(["short"])[0]
    wide = replace(embeddings[0], vector=np.ones(5, np.float32))
    nan = replace(embeddings[0], landmarks=np.full_like(embeddings[0].landmarks, np.nan))
    long = replace(embeddings[0], landmarks=embeddings[0].landmarks * np.float32(1.5))
    none = replace(embeddings[0], norms=embeddings[0].norms * 0)
    few = replace(embeddings[0], norms=embeddings[0].norms[1:])
    late, apart = embeddings[0].spans.copy(), embeddings[0].spans.copy()
    late[0, 0], apart[0, 1] = 2, 1
    encoder.encoded.clear()
    report = store.add_encoded(
        [
            *zip(good, embeddings, strict=True),
            (Document("other", good[0].text), other),
            (Document("longer", "short"), embeddings[0]),
            (Document("wide", good[0].text), wide),
            (Document("nan", good[0].text), nan),
            (Document("long", good[0].text), long),
            (Document("none", good[0].text), none),
            (Document("few", good[0].text), few),
            (Document("late", good[0].text), replace(embeddings[0], spans=late)),
            (Document("apart", good[0].text), replace(embeddings[0], spans=apart)),
        ]
    )
    assert encoder.encoded == []
    assert report.added == ["d0", "d1", "d2"]
    reasons = {s.document_id: s.reason for s in report.skipped}
    assert "covers 5 characters, the text has 33: it is of another text" in reasons["other"]
    assert "it is of another text" in reasons["longer"]
    assert "the store has width 32" in reasons["wide"]
    assert "NaN or infinity" in reasons["nan"]
    assert "landmark of its embedding has length 1.5; expected unit length" in reasons["long"]
    assert "a norm of its embedding is 0; expected positive ones" in reasons["none"]
    assert "its embedding has the shapes" in reasons["few"]
    for name in ("late", "apart"):
        assert "don't follow each other from the text's beginning" in reasons[name]
    assert store.add(good).unchanged == ["d0", "d1", "d2"]


@pytest.mark.parametrize("given", [None, "text", 5, Document("a", "text")])
def test_what_is_no_iterable_of_documents_is_refused(store, given):
    for add in (store.add, store.add_encoded):
        with pytest.raises(InputError, match="expected an iterable of documents"):
            add(given)


def test_an_empty_iterable_is_fine(store):
    report = store.add(iter(()))
    assert report == AddReport()
    assert report.n_documents == 0


def test_documents_are_streamed_with_a_bounded_look_ahead(store, encoder):
    read = 0
    most = 0

    def stream():
        nonlocal read, most
        for i in range(400):
            read = i + 1
            most = max(most, read - store.count())
            yield Document(str(i), f"Document {i} " * 20)

    report = store.add(stream())
    assert len(report.added) == store.count() == 400
    # A group holds 12 batches of 64 tokens at 4 characters, and one document more was read.
    assert most <= 12 * 64 * 4 // 220 + 3


def test_progress_is_told_as_it_is_made(store):
    told = []
    store.add([*documents(3), Document("blank", " ")], on_progress=told.append)
    assert sum(told) == 4
    long = [Document(str(i), "many words " * 400) for i in range(5)]
    told.clear()
    store.add(long, on_progress=told.append)
    assert told == [1] * 5
    store.add(documents(3), show_progress=True)  # nothing is drawn where there is no terminal


def test_the_report_reads_as_a_sentence():
    report = AddReport(["a"], ["b", "c"], [], [Skipped("d", "the text is blank", False)])
    assert str(report) == "1 added, 2 updated, 0 unchanged, 1 skipped"
    assert report.n_documents == 4


def test_a_crash_while_encoding_loses_only_the_group_in_flight(store, encoder):
    long = [Document(f"d{i}", f"number{i} " * 400) for i in range(6)]
    store.add([Document("old", "This was here before.")])
    encoder.refuse[long[3].text] = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        store.add(long)
    assert [d.id for d in store.get(["old", *(d.id for d in long)])] == ["old", "d0", "d1", "d2"]
    encoder.refuse.clear()
    encoder.encoded.clear()
    report = store.add(long)
    assert (report.unchanged, report.added) == (["d0", "d1", "d2"], ["d3", "d4", "d5"])
    assert encoder.encoded == [d.text for d in long[3:]]
    assert store.count() == store._backend.count() == 7


def test_a_crash_of_the_source_loses_only_the_group_in_flight(store):
    long = [Document(f"d{i}", f"number{i} " * 400) for i in range(6)]

    def source():
        yield from long[:3]
        raise OSError("the disk went away")

    with pytest.raises(OSError, match="disk"):
        store.add(source())
    assert store.count() == 2  # the third was read, and not yet written
    assert str(store.add(long)) == "4 added, 0 updated, 2 unchanged, 0 skipped"


class DyingClient(QdrantClient):
    """A client that fails before a given write."""

    die_before: str | None = None

    def upsert(self, *args, **kwargs):
        if self.die_before == "upsert":
            raise MemoryError("before upsert")
        return super().upsert(*args, **kwargs)

    def delete(self, *args, **kwargs):
        if self.die_before == "delete":
            raise MemoryError("before delete")
        return super().delete(*args, **kwargs)


@pytest.mark.parametrize("step", ["upsert", "delete"])
def test_a_crash_between_writes_keeps_the_document_and_the_next_add_cleans_up(encoder, step):
    client = DyingClient(":memory:")
    store = QdrantStore("docs", encoder=encoder, client=client)
    store.add(documents(3))
    client.die_before = step
    with pytest.raises(MemoryError):
        store.add([Document("d1", "A new text here.")])
    client.die_before = None
    texts = [d.text for d in store.get(["d0", "d1", "d2"])]
    assert len(texts) == 3
    assert texts[1] in ("A new text here.", documents(3)[1].text)
    assert "d1" in {hit.document_id for hit in Retriever(store).search_documents("text", k=3)}
    store.add([Document("d1", "A new text here.")])
    assert store.count() == store._backend.count() == 3
    assert store.get(["d1"])[0].text == "A new text here."
    client.close()


def test_after_a_cut_short_update_a_search_shows_one_revision_only(word_encoder):
    client = DyingClient(":memory:")
    store = QdrantStore("docs", encoder=word_encoder(k=2), client=client)
    store.add([Document("a", "The pump stops. The pump runs. The pump waits.")])
    client.die_before = "delete"
    with pytest.raises(MemoryError):
        store.add([Document("a", "A new pump came. It hums a song. The pump is red.")])
    for mode in ("exact", "two-stage", "document", "hybrid"):
        found = Retriever(store).search("pump", per_document=9, passage_tokens=2, mode=mode)
        spans = sorted((p.start, p.end) for p in found)
        assert all(a[1] <= b[0] for a, b in itertools.pairwise(spans))
        assert len(Retriever(store).search_documents("pump", mode=mode)) == 1
    client.close()


def test_missing_segments_are_written_again(word_encoder):
    text = "".join(f"Line {i} of many words here.\n" for i in range(400))
    with QdrantStore("docs", encoder=word_encoder(k=8, dim=2048)) as store:
        store.add([Document("a", text)])
        (info,) = store.documents()
        assert info.n_segments > 2
        some = next(iter(store._backend.scroll(None, fields=("segment",)))).id
        store._backend._inner.delete_points([some])
        assert store.get(["a"]) == []  # never half a text
        assert store.add([Document("a", text)]).updated == ["a"]
        assert store.get(["a"])[0].text == text
        assert store._backend.count() == info.n_segments


KILLED = """
import os
from qdrant_client import QdrantClient
from lmk_rag import Document, QdrantStore
from lmk_rag.plain_encoder import PlainEncoder

class Killed(QdrantClient):
    def {method}(self, *args, **kwargs):
        if armed:
            os._exit(9)
        return super().{method}(*args, **kwargs)

def embed(texts):
    return [[1.0, len(text)] for text in texts]

armed = False
client = Killed(path={folder!r}, force_disable_check_same_thread=True)
store = QdrantStore("docs", encoder=PlainEncoder(embed, embed, name="ones"), client=client)
store.add(Document(f"d{{i}}", f"Document {{i}} about it.") for i in range(4))
armed = True
store.add([Document("d1", "An edited text."), Document("d9", "A new one.")])
"""


@pytest.mark.parametrize("method", ["upsert", "delete"])
def test_a_killed_process_leaves_a_store_that_opens_and_completes(tmp_path, method):
    def embed(texts):
        return [[1.0, len(text)] for text in texts]

    encoder = PlainEncoder(embed, embed, name="ones")
    code = KILLED.format(folder=str(tmp_path / "store"), method=method)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 9, done.stderr
    with QdrantStore("docs", encoder=encoder, location=tmp_path / "store") as store:
        assert len(store.get([f"d{i}" for i in range(4)])) == 4
        store.add([Document("d1", "An edited text."), Document("d9", "A new one.")])
        assert store.count() == store._backend.count() == 5
        assert store.get(["d1"])[0].text == "An edited text."


def test_the_callers_objects_are_not_changed(store):
    metadata = {"tags": ("a", "b"), "nested": {"x": [1]}}
    document = Document("a", "text", metadata)
    store.add([document])
    store.get(["a"])[0].metadata["nested"]["x"].append(2)
    assert metadata == {"tags": ("a", "b"), "nested": {"x": [1]}}
    assert document.metadata is metadata
    metadata["nested"]["x"].append(3)
    assert store.get(["a"])[0].metadata["nested"] == {"x": [1]}
