"""Locks, processes and threads on the engines inside the process; FR-O-16 and FR-O-18."""

import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec

import pytest
from qdrant_client import QdrantClient, models

from lmk_rag import Document, QdrantStore, Retriever
from lmk_rag.errors import LMKError, StoreLockedError
from lmk_rag.plain_encoder import PlainEncoder
from lmk_rag.store import And, Eq, read_config

ENGINES = ["memory", "local"] + ["edge"] * (find_spec("qdrant_edge") is not None)


def embed(texts):
    return [[1.0, len(text)] for text in texts]


def plain():
    return PlainEncoder(embed, embed, name="lengths")


@pytest.fixture(params=ENGINES[1:])
def folder(request, tmp_path):
    """Keywords that open a store in a folder."""
    return {"location": tmp_path / "store", "engine": request.param}


HOLDER = """
import os, sys
from lmk_rag import Document, QdrantStore
from lmk_rag.plain_encoder import PlainEncoder

def embed(texts):
    return [[1.0, len(text)] for text in texts]

encoder = PlainEncoder(embed, embed, name="lengths")
store = QdrantStore("docs", encoder=encoder, location={location!r}, engine={engine!r})
store.add([Document("a", "stored by the holder")])
print("ready", flush=True)
sys.stdin.readline()
os._exit(9)
"""


def test_a_second_store_on_a_folder_is_refused_with_the_remedy(folder):
    with QdrantStore("docs", encoder=plain(), **folder):
        for _ in range(2):
            with pytest.raises(StoreLockedError) as caught:
                QdrantStore("docs", encoder=plain(), **folder)
            message = str(caught.value)
            assert str(folder["location"]) in message
            assert (
                "open in another process or client; close that one, or run a Qdrant server"
                in message
            )
            assert isinstance(caught.value, LMKError)
    QdrantStore("docs", encoder=plain(), **folder).close()


def test_leaving_with_by_an_error_releases_the_folder(folder):
    with pytest.raises(KeyError), QdrantStore("docs", encoder=plain(), **folder):
        raise KeyError
    QdrantStore("docs", encoder=plain(), **folder).close()


def test_field_case_a_folder_held_by_another_process(folder):
    code = HOLDER.format(location=str(folder["location"]), engine=folder["engine"])
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout.readline() == "ready\n"
        with pytest.raises(StoreLockedError, match="open in another process"):
            QdrantStore("docs", encoder=plain(), **folder)
        holder.stdin.write("\n")
        holder.stdin.flush()
        assert holder.wait(timeout=60) == 9
    with QdrantStore("docs", encoder=plain(), **folder) as store:  # nothing to clean up by hand
        assert [d.text for d in store.get(["a"])] == ["stored by the holder"]


def test_reading_the_config_of_a_locked_folder_of_local_mode_is_refused(tmp_path):
    location = tmp_path / "store"
    with (
        QdrantStore("docs", encoder=plain(), location=location, engine="local"),
        pytest.raises(StoreLockedError),
    ):
        read_config("docs", location=location)


def test_a_deletion_cut_short_is_finished_by_the_next(tmp_path, word_encoder, monkeypatch):
    place = {"encoder": word_encoder(k=4), "location": tmp_path, "engine": "local"}
    with QdrantStore("docs", **place) as store:
        store.add([Document("long", "many words " * 1_500), Document("other", "words")])
        assert store.count_segments() > 3
        whole = QdrantClient.delete

        def torn(self, collection, selector, **kwargs):
            whole(self, collection, models.PointIdsList(points=selector.points[:2]), **kwargs)
            raise KeyboardInterrupt

        with monkeypatch.context() as patched:
            patched.setattr(QdrantClient, "delete", torn)
            with pytest.raises(KeyboardInterrupt):
                store.delete(["long"])
    with QdrantStore("docs", **place) as store:
        assert sorted(info.id for info in store.documents()) == ["long", "other"]
        assert store.delete_where(And()) == 2
        assert store.count_segments() == 0


# ---- threads


@pytest.fixture(params=ENGINES)
def shared(request, tmp_path, word_encoder):
    """An empty store for many threads."""
    place = {} if request.param == "memory" else {"location": tmp_path, "engine": request.param}
    with QdrantStore("docs", encoder=word_encoder(k=3), **place) as store:
        yield store


def run(*jobs):
    """Run jobs at the same time; raise what any of them raised."""
    barrier = threading.Barrier(len(jobs))

    def start(job):
        barrier.wait(timeout=60)
        return job()

    with ThreadPoolExecutor(len(jobs)) as pool:
        return [future.result() for future in [pool.submit(start, job) for job in jobs]]


def test_concurrent_writers_and_readers_leave_exact_counts(shared):
    def write(w):
        for i in range(12):
            shared.add([Document(f"{w}-{i}", f"Writer {w} wrote topic{i} here. And more.")])
        shared.delete([f"{w}-0", f"{w}-1"])

    def read():
        retriever = Retriever(shared)
        for turn in range(15):
            for mode in ("exact", "two-stage", "document", "hybrid"):
                for p in retriever.search(f"topic{turn}", k=5, mode=mode):
                    w, i = p.document_id.split("-")
                    assert p.text in f"Writer {w} wrote topic{i} here. And more."
            assert 0 <= shared.count() <= 36
            list(shared.documents(Eq("x", 1)))

    run(*[lambda w=w: write(w) for w in range(3)], read, read)
    assert shared.count() == shared._backend.count() == 30
    assert len(list(shared.documents())) == 30
    assert len(Retriever(shared).search_documents("topic5", k=99)) == 30


def test_two_writers_of_one_document_leave_one_of_their_texts(shared):
    for turn in range(6):
        run(
            lambda turn=turn: shared.add([Document("a", f"left text {turn}. " * 9)]),
            lambda turn=turn: shared.add([Document("a", f"right text {turn}. " * 9)]),
        )
        assert shared.count() == shared._backend.count() == 1
        assert shared.get(["a"])[0].text in (f"left text {turn}. " * 9, f"right text {turn}. " * 9)


def test_a_document_under_replacement_is_always_found(shared):
    shared.add([Document("a", "the pump, revision 0"), Document("b", "boats")])
    done = threading.Event()

    def replace():
        for i in range(30):
            shared.add([Document("a", f"the pump, revision {i}")])
        done.set()

    def look():
        retriever = Retriever(shared)
        looks = 0
        while not done.is_set() or looks == 0:
            (best, *_) = retriever.search_documents("pump revision", k=1)
            assert best.document_id == "a"
            assert shared.get(["a"])[0].text.startswith("the pump")
            looks += 1

    run(replace, look)


def test_stores_on_one_client_take_turns(word_encoder):
    client = QdrantClient(":memory:")
    stores = [QdrantStore("docs", encoder=word_encoder(), client=client) for _ in range(3)]
    run(
        *[
            lambda n=n, store=store: [
                store.add([Document(f"{n}-{i}", f"text {i}")]) for i in range(20)
            ]
            for n, store in enumerate(stores)
        ]
    )
    assert {store.count() for store in stores} == {60}
    assert len(Retriever(stores[0]).search_documents("text", k=99)) == 60
    client.close()
