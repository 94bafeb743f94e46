"""`LMKTextSplitter`: verbatim pieces, exact offsets."""

import copy
import warnings

import pytest
from langchain_core.documents import Document

from langchain_lmk import LMKEmbeddings, LMKTextSplitter
from lmk_rag import LandmarkChunker

REPEATED = "Restart the pump now.\n" * 12
MARKUP = [
    "if x:\n\tfor y in z:\n\t\tprint( y )\n\n\n    # end  \n",
    "| part | qty |\n|---|---|\n| bolt M6 | 12 |\n| nut  M6 | 12 |\n",
    "<table><tr><td>A&amp;B</td>\n<td>&nbsp;7</td></tr></table>",
    "  Größe,\r\ncafé 🚀☕ e\u0301\u200b [SEP] ",
]


@pytest.fixture(scope="module")
def embeddings(model_folder) -> LMKEmbeddings:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*was not trained with landmarks")
        return LMKEmbeddings(model=model_folder("bert"), config={"granularity": 4, "overlap": 8})


@pytest.fixture
def splitter(embeddings) -> LMKTextSplitter:
    return LMKTextSplitter(embeddings, chunk_tokens=8)


def spans(pieces: list[Document]) -> list[tuple[int, int]]:
    return [(piece.metadata["start_index"], piece.metadata["end_index"]) for piece in pieces]


def test_repeated_sentences_have_their_own_offsets(splitter):
    pieces = splitter.create_documents([REPEATED])
    assert spans(pieces) == [(start, start + 22) for start in range(0, 12 * 22, 22)]
    assert {piece.page_content for piece in pieces} == {"Restart the pump now.\n"}


@pytest.mark.parametrize("text", [*MARKUP, REPEATED])
def test_pieces_are_slices_that_make_up_the_text(splitter, text):
    pieces = splitter.create_documents([text])
    assert "".join(piece.page_content for piece in pieces) == text
    assert all(
        piece.page_content == text[s:e] for piece, (s, e) in zip(pieces, spans(pieces), strict=True)
    )
    assert len(pieces) > 1
    assert splitter.split_text(text) == [piece.page_content for piece in pieces]


def test_cuts_where_the_core_cuts(splitter, embeddings):
    text = REPEATED + "".join(MARKUP)
    chunks = LandmarkChunker(embeddings.encoder, chunk_tokens=8).chunk(text)
    assert spans(splitter.create_documents([text])) == [(c.start, c.end) for c in chunks]


@pytest.mark.parametrize("text", ["", " ", "\n\t\u00a0"])
def test_a_blank_text_has_no_pieces(splitter, text):
    assert splitter.split_text(text) == []
    assert splitter.create_documents([text, "alpha"])[0].page_content == "alpha"


def test_metadata_is_copied_for_every_piece(splitter):
    metadata = {"source": "a", "nested": {"k": [1, None]}}
    before = copy.deepcopy(metadata)
    pieces = splitter.create_documents([REPEATED, "beta"], [metadata, {}])
    assert pieces[0].metadata == {**before, "start_index": 0, "end_index": 22}
    assert pieces[-1].metadata == {"start_index": 0, "end_index": 4}
    pieces[0].metadata["nested"]["k"].append(2)
    assert pieces[1].metadata["nested"] == {"k": [1, None]}
    assert metadata == before


def test_texts_without_metadata_share_none(splitter):
    first, second = splitter.create_documents(["alpha", "beta"])
    first.metadata["x"] = 1
    assert second.metadata == {"start_index": 0, "end_index": 4}


def test_refuses_another_number_of_metadatas(splitter):
    with pytest.raises(ValueError, match="shorter"):
        splitter.create_documents(["alpha", "beta"], [{}])


def test_documents_stay_as_they_are(splitter):
    documents = [Document(id="d", page_content=REPEATED, metadata={"source": "a"})]
    before = copy.deepcopy(documents)
    pieces = splitter.split_documents(documents)
    assert documents == before
    assert [piece.id for piece in pieces] == [None] * 12
    assert pieces[0].metadata == {"source": "a", "start_index": 0, "end_index": 22}


def test_offsets_count_from_the_document_that_was_given(splitter):
    last = splitter.create_documents([REPEATED])[-1]
    assert spans([last]) == [(242, 264)]
    assert spans(splitter.split_documents([last])) == [(0, 22)]


async def test_transforms_documents(splitter):
    documents = [Document(page_content=REPEATED), Document(page_content=MARKUP[0])]
    expected = splitter.split_documents(documents)
    assert splitter.transform_documents(documents) == expected
    assert await splitter.atransform_documents(documents) == expected
    assert splitter.split_documents(iter(documents)) == expected
    assert splitter.transform_documents([]) == []
    with pytest.raises(TypeError, match="takes no options, got chunk_size"):
        splitter.transform_documents(documents, chunk_size=3)


async def test_the_event_loop_turns_while_a_text_is_split(splitter, waits_for_the_loop):
    turns = waits_for_the_loop(LandmarkChunker, "spans")
    pieces = await splitter.atransform_documents([Document(page_content=REPEATED)] * 2)
    assert turns == [True, True]
    assert pieces[-1].metadata["end_index"] == 264


def test_refuses_an_impossible_size(embeddings):
    with pytest.raises(ValueError, match="chunk_tokens is 0; expected a whole number"):
        LMKTextSplitter(embeddings, chunk_tokens=0)


def test_the_default_model_cuts_too():
    text = "Pumps move water. " * 100
    pieces = LMKTextSplitter(chunk_tokens=64).split_text(text)
    assert "".join(pieces) == text
    assert all(piece.endswith(". ") for piece in pieces)
