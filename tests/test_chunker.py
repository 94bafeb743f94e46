"""Chunks along landmarks: tiling, limits, cuts, vectors; one encoding for every size."""

import itertools

import numpy as np
import pytest

from lmk_rag.chunker import LandmarkChunker
from lmk_rag.config import LandmarkConfig
from lmk_rag.errors import ConfigError, InputError

PROSE = (
    "The pump stops when the valve closes. Nobody restarts the pump now.\n\n"
    "Write between the parts; then leave the rest of it alone. That's all we know.\n"
    "A text of medium length with some words, and no end in sight\nuntil here. "
) * 6
CODE = ["if x:\n\tfor y in z:\n\t\tprint( y )\n\n\n    # end  \n"]
CODE += ["| part | qty |\n|---|---|\n| bolt M6 | 12 |\n| nut  M6 | 12 |\n"]
CODE += ["<table><tr><td>A&amp;B</td>\n<td>&nbsp;7</td></tr></table>"]


@pytest.fixture(scope="module")
def fine(model_folder, load):
    """BERT with a landmark every 3 tokens."""
    with load(model_folder("bert"), LandmarkConfig(granularity=3, overlap=6)) as encoder:
        yield encoder


@pytest.mark.parametrize("size", [1, 3, 7, 40, 10_000])
def test_chunks_tile_the_text_and_keep_to_their_size(fine, size):
    embedding = fine.encode_documents([PROSE])[0]
    chunks = LandmarkChunker(fine, chunk_tokens=size).chunk(PROSE, embedding)
    assert "".join(chunk.text for chunk in chunks) == PROSE
    assert chunks[0].start == 0
    assert chunks[-1].end == len(PROSE)
    assert chunks[-1].last_landmark == embedding.n_landmarks - 1
    for chunk in chunks:
        assert chunk.text == PROSE[chunk.start : chunk.end]
        tokens = embedding.landmark_tokens[chunk.first_landmark : chunk.last_landmark + 1]
        assert chunk.n_tokens == tokens.sum()
        assert chunk.n_tokens <= size or chunk.first_landmark == chunk.last_landmark
    for a, b in itertools.pairwise(chunks):
        assert b.first_landmark == a.last_landmark + 1


def test_one_embedding_serves_every_size_with_the_mean_of_raw_landmark_states(fine):
    embedding = fine.encode_documents([PROSE])[0]
    raw = embedding.landmarks * embedding.norms[:, None]
    for size in (3, 20, 100):
        for chunk in LandmarkChunker(fine, chunk_tokens=size).chunk(PROSE, embedding):
            mean = np.zeros(32)
            for row in raw[chunk.first_landmark : chunk.last_landmark + 1]:
                mean += row
            assert np.allclose(chunk.vector, mean / np.linalg.norm(mean), atol=1e-6)
            assert chunk.vector.dtype == np.float32


def test_a_chunk_of_the_whole_text_has_the_document_vector_where_pooling_is_lmk(tmp_path, load):
    from lmk_rag import LandmarkEncoder

    with LandmarkEncoder() as encoder:
        embedding = encoder.encode_documents([PROSE])[0]
        chunks = LandmarkChunker(encoder, chunk_tokens=100_000).chunk(PROSE, embedding)
        assert [chunk.text for chunk in chunks] == [PROSE]
        if encoder.pooling == "lmk":
            assert np.allclose(chunks[0].vector, embedding.vector, atol=1e-5)


def test_without_an_embedding_the_text_is_encoded(fine):
    chunker = LandmarkChunker(fine, chunk_tokens=30)
    given = chunker.chunk(PROSE, fine.encode_documents([PROSE])[0])
    made = chunker.chunk(PROSE)
    assert [chunk.text for chunk in made] == [chunk.text for chunk in given]
    assert np.allclose([c.vector for c in made], [c.vector for c in given], atol=1e-5)


def test_spans_are_those_of_the_chunks(fine):
    chunker = LandmarkChunker(fine, chunk_tokens=25)
    for text in (PROSE, *CODE, "", "one"):
        assert chunker.spans(text) == [(c.start, c.end) for c in chunker.chunk(text)]


def test_cuts_at_the_paragraph_end_in_the_second_half_of_the_room(word_encoder):
    text = "a b c d. E f g h. I j\n\nK l. M n o p. Q r s t. U v w x."
    embedding = word_encoder(k=2).encode_documents([text])[0]
    chunks = LandmarkChunker(None, chunk_tokens=13).chunk(text, embedding)
    assert [c.text for c in chunks] == [
        "a b c d. E f g h. I j\n\n",
        "K l. M n o p. Q r s t. ",
        "U v w x.",
    ]


def test_prefers_a_sentence_end_to_a_line_end_and_a_line_end_to_none(word_encoder):
    encoder = word_encoder(k=1)

    def cut(text):
        chunker = LandmarkChunker(encoder, chunk_tokens=6)
        return [c.text for c in chunker.chunk(text, encoder.encode_documents([text])[0])]

    assert cut("a b c d. E\nf g h") == ["a b c d. ", "E\nf g h"]
    assert cut("a b c d\ne f g h") == ["a b c d\n", "e f g h"]
    assert cut("a b c d e f g h") == ["a b c d e f ", "g h"]
    assert cut("a. B c d e f g h") == ["a. B c d e f ", "g h"]  # too early to stop there


def test_field_case_repeated_sentences_get_different_positions(model_folder, load):
    text = "Restart the pump now.\n" * 12
    with load(model_folder("bert"), LandmarkConfig(granularity=4)) as encoder:
        chunks = LandmarkChunker(encoder, chunk_tokens=8).chunk(text)
    starts = [chunk.start for chunk in chunks]
    assert starts == sorted(set(starts))
    assert [chunk.text for chunk in chunks] == [text[c.start : c.end] for c in chunks]
    # Every sentence lies at a place of its own.
    owners = [max(s for s in starts if s <= at) for at in range(0, len(text), 22)]
    assert len({(o, at) for o, at in zip(owners, range(0, len(text), 22), strict=True)}) == 12


def test_field_case_twelve_repeats_as_twelve_chunks(word_encoder):
    text = "Restart the pump now.\n" * 12
    encoder = word_encoder(k=4)
    chunks = LandmarkChunker(encoder, chunk_tokens=4).chunk(text)
    assert [(c.start, c.end) for c in chunks] == [(22 * i, 22 * i + 22) for i in range(12)]


@pytest.mark.parametrize("text", CODE)
@pytest.mark.parametrize("size", [1, 3, 8])
def test_field_case_chunks_are_verbatim_slices(fine, text, size):
    chunks = LandmarkChunker(fine, chunk_tokens=size).chunk(text)
    assert "".join(chunk.text for chunk in chunks) == text


def test_a_chunk_does_not_end_inside_a_character(model_folder, load):
    text = "🚀 one 🚀🚀🚀 two ☕ three 🚀☕🚀☕ four"
    config = LandmarkConfig(granularity=1, boundary="token")
    with load(model_folder("modernbert"), config) as encoder:
        assert len(encoder.lay_out("🚀").spans) > 1
        for size in (8, 12, 20):
            chunks = LandmarkChunker(encoder, chunk_tokens=size).chunk(text)
            assert "".join(chunk.text for chunk in chunks) == text


def test_chunks_of_a_truncated_text_cover_what_was_encoded(model_folder, load):
    config = LandmarkConfig(granularity=4, on_overflow="truncate")
    with load(model_folder("bert"), config) as encoder:
        with pytest.warns(UserWarning, match="^text 0 did not fit"):
            embedding = encoder.encode_documents([PROSE])[0]
        assert embedding.truncated
        chunks = LandmarkChunker(encoder, chunk_tokens=10).chunk(PROSE, embedding)
    covered = int(embedding.spans[-1, 1])
    assert covered < len(PROSE)
    assert "".join(chunk.text for chunk in chunks) == PROSE[:covered]


def test_refuses_the_embedding_of_another_text(fine):
    embedding = fine.encode_documents(["a text of some length"])[0]
    chunker = LandmarkChunker(fine)
    for other in ("a text", "a text of some length and more"):
        with pytest.raises(InputError, match="covers 21 characters"):
            chunker.chunk(other, embedding)


@pytest.mark.parametrize("size", [0, -1, True, 2.5, "8", None])
def test_refuses_sizes_that_are_no_positive_whole_number(fine, size):
    with pytest.raises(ConfigError, match="chunk_tokens is"):
        LandmarkChunker(fine, chunk_tokens=size)


def test_blank_texts_are_one_chunk(fine):
    for text in ("", "  \n"):
        chunks = LandmarkChunker(fine).chunk(text)
        assert [(c.text, c.n_tokens) for c in chunks] == [(text, 0)]


def test_iter_chunks_is_lazy_and_in_order(fine):
    taken = []

    def texts():
        for i in itertools.count():
            taken.append(i)
            yield f"text {i} " * 50

    chunker = LandmarkChunker(fine, chunk_tokens=20)
    stream = chunker.iter_chunks(texts())
    assert taken == []
    first = [next(stream) for _ in range(3)]
    assert ["".join(c.text for c in chunks) for chunks in first] == [
        f"text {i} " * 50 for i in range(3)
    ]
    assert len(taken) * 400 < 8 * 16 * fine.batch_tokens  # a few batches ahead, no more


def test_iter_chunks_equals_chunk(fine):
    chunker = LandmarkChunker(fine, chunk_tokens=20)
    texts = [PROSE, "", "one two", *CODE]
    many = list(chunker.iter_chunks(texts))
    assert [[(c.start, c.end) for c in chunks] for chunks in many] == [
        [(c.start, c.end) for c in chunker.chunk(text)] for text in texts
    ]
    assert list(chunker.iter_chunks([])) == []


@pytest.mark.parametrize("texts", ["one text", None, 7])
def test_iter_chunks_refuses_what_is_no_iterable_of_texts(fine, texts):
    with pytest.raises(InputError, match="expected an iterable of strings"):
        LandmarkChunker(fine).iter_chunks(texts)
