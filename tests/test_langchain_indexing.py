"""LangChain's indexing API over `LMKVectorStore`: exact counts, whatever was done before."""

import warnings

import pytest
from langchain_core.documents import Document
from langchain_core.embeddings import DeterministicFakeEmbedding
from langchain_core.indexing import InMemoryRecordManager, aindex, index

from langchain_lmk import LMKTextSplitter, LMKVectorStore
from lmk_rag.errors import InputError

EMBEDDING = DeterministicFakeEmbedding(size=6)


class Source:
    """Three files of some pieces each, and an index of them, by sync or async calls."""

    def __init__(self, *, cleanup: str | None, key_encoder: str, use_async: bool) -> None:
        self.files = {"a": ["a1", "a2", "a3"], "b": ["b1", "b2"], "c": ["c1"]}
        self.vector_store = LMKVectorStore(EMBEDDING)
        self.records = InMemoryRecordManager(namespace="test")
        self.records.create_schema()
        self._options = {
            "cleanup": cleanup,
            "key_encoder": key_encoder,
            "source_id_key": "source",
            # Incremental cleanup takes what a later batch would bring for deleted.
            "batch_size": 100 if cleanup == "incremental" else 2,
        }
        self._async = use_async

    async def index(self, **options) -> list[int]:
        """Index all files; returns how many were added, updated, skipped and deleted."""
        documents = [
            Document(page_content=text, metadata={"source": name})
            for name, texts in self.files.items()
            for text in texts
        ]
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*SHA-1.*")
            arguments = (documents, self.records, self.vector_store)
            if self._async:
                result = await aindex(*arguments, **self._options | options)
            else:
                result = index(*arguments, **self._options | options)
        return [result[f"num_{what}"] for what in ("added", "updated", "skipped", "deleted")]

    def stored(self) -> list[str]:
        return sorted(d.page_content for d in self.vector_store.similarity_search("a", k=100))


@pytest.fixture(params=["sha1", "sha256", "sha512", "blake2b"])
def key_encoder(request) -> str:
    return request.param


@pytest.fixture(params=[False, True], ids=["sync", "async"])
def use_async(request) -> bool:
    return request.param


@pytest.mark.parametrize("cleanup", ["incremental", "full", "scoped_full"])
async def test_rerun_edit_shrink_and_delete(cleanup, key_encoder, use_async):
    source = Source(cleanup=cleanup, key_encoder=key_encoder, use_async=use_async)
    assert await source.index() == [6, 0, 0, 0]
    assert await source.index() == [0, 0, 6, 0]
    assert source.stored() == ["a1", "a2", "a3", "b1", "b2", "c1"]

    source.files["a"][1] = "a2 edited"
    assert await source.index() == [1, 0, 5, 1]
    assert source.stored() == ["a1", "a2 edited", "a3", "b1", "b2", "c1"]

    source.files["a"] = ["a1"]
    assert await source.index() == [0, 0, 4, 2]
    assert source.stored() == ["a1", "b1", "b2", "c1"]

    del source.files["b"]
    gone = 2 if cleanup == "full" else 0  # the other two leave sources alone that don't come up
    assert await source.index() == [0, 0, 2, gone]
    assert source.stored() == (["a1", "c1"] if gone else ["a1", "b1", "b2", "c1"])
    assert source.vector_store.store.count() == len(source.stored())

    source.files["b"] = ["b1", "b2"]
    assert (await source.index())[0] == gone
    assert source.stored() == ["a1", "b1", "b2", "c1"]


async def test_without_cleanup_old_pieces_stay(key_encoder, use_async):
    source = Source(cleanup=None, key_encoder=key_encoder, use_async=use_async)
    assert await source.index() == [6, 0, 0, 0]
    source.files = {"a": ["a1", "a2 edited"]}
    assert await source.index() == [1, 0, 1, 0]
    assert source.vector_store.store.count() == 7
    assert await source.index(force_update=True) == [0, 2, 0, 0]
    assert source.vector_store.store.count() == 7


async def test_full_cleanup_of_nothing_empties_the_store(use_async):
    source = Source(cleanup="full", key_encoder="sha256", use_async=use_async)
    await source.index()
    source.files = {}
    assert await source.index() == [0, 0, 0, 6]
    assert source.stored() == []


async def test_changed_metadata_is_a_change(use_async):
    source = Source(cleanup="full", key_encoder="sha256", use_async=use_async)
    source.files = {"a": ["same"], "b": ["same"]}
    assert await source.index() == [2, 0, 0, 0]  # equal text of two sources stays two
    source.files = {"a": ["same"], "d": ["same"]}
    assert await source.index() == [1, 0, 1, 1]
    found = source.vector_store.similarity_search("same")
    assert sorted(document.metadata["source"] for document in found) == ["a", "d"]


async def test_a_crash_before_the_records_is_made_good(use_async):
    source = Source(cleanup="full", key_encoder="sha256", use_async=use_async)
    await source.index()
    source.records.delete_keys(source.records.list_keys())  # the store was written, they were not
    assert await source.index() == [6, 0, 0, 0]
    assert source.vector_store.store.count() == 6


async def test_a_blank_piece_is_refused(use_async):
    source = Source(cleanup="full", key_encoder="sha256", use_async=use_async)
    source.files = {"a": ["a1", " "]}
    with pytest.raises(InputError, match=r"document 1 .*: the text is blank"):
        await source.index()
    assert source.vector_store.store.count() == 0


async def test_split_documents_are_indexed_by_piece(use_async):
    source = Source(cleanup="incremental", key_encoder="sha256", use_async=use_async)
    splitter = LMKTextSplitter(chunk_tokens=32)
    text = "".join(f"Pump {n} moves water up to tank {n}. " for n in range(40))
    source.files = {"a": splitter.split_text(text)}
    n = len(source.files["a"])
    assert n > 5
    assert await source.index() == [n, 0, 0, 0]
    source.files = {"a": splitter.split_text(text + "Pump 40 was sold. ")}
    added, updated, skipped, deleted = await source.index()
    assert (added, updated, skipped, deleted) == (1, 0, n - 1, 1)
    assert source.vector_store.store.count() == n
