"""Any embedding function as an encoder of one landmark per text."""

import numpy as np
import pytest

from lmk_rag import Document, QdrantStore, Retriever
from lmk_rag.errors import InputError, NonFiniteError
from lmk_rag.plain_encoder import PlainEncoder

VECTORS = {"width": [0, 1], "one": [3, 4], "two": [0, 2], "zero": [0, 0], "nan": [float("nan"), 1]}
VECTORS |= {"huge": [3e300, 4e300], "long": [1, 2, 3], "infinite": [float("inf"), 1]}


def embed(texts):
    return [VECTORS[text] for text in texts]


@pytest.fixture
def encoder():
    return PlainEncoder(embed, embed, name="plain")


def test_a_text_is_one_landmark_of_unit_length(encoder):
    first, second = encoder.encode_documents(["one", "two"])
    assert np.allclose(first.vector, [0.6, 0.8])
    assert first.vector.dtype == np.float32
    assert np.array_equal(first.landmarks, first.vector[None])
    assert first.spans.tolist() == [[0, 3]]
    assert (first.n_landmarks, first.n_tokens, first.n_windows) == (1, 1, 1)
    assert second.vector.tolist() == [0, 1]
    assert np.allclose(encoder.encode_queries(["one", "two"]), [[0.6, 0.8], [0, 1]])


def test_no_texts_give_no_vectors(encoder):
    assert encoder.encode_documents([]) == []
    assert encoder.encode_queries([]).shape == (0, 2)


def test_large_values_do_not_overflow(encoder):
    assert np.allclose(encoder.encode_queries(["huge"]), [[0.6, 0.8]])


@pytest.mark.parametrize("text", ["zero", "nan", "infinite"])
def test_vectors_without_a_direction_are_refused_by_index(encoder, text):
    for encode in (encoder.encode_documents, encoder.encode_queries):
        with pytest.raises(NonFiniteError, match=r"'plain' gave .* for text 1"):
            encode(["one", text])


def test_wrong_widths_and_numbers_of_vectors_are_refused(encoder):
    with pytest.raises(InputError, match="'plain' gave vectors of width 3; expected 2"):
        encoder.encode_documents(["long"])
    with pytest.raises(InputError, match="'plain' gave no vectors of one width"):
        encoder.encode_documents(["one", "long"])
    few = PlainEncoder(lambda texts: embed(texts[:1]), embed, name="few")
    with pytest.raises(InputError, match=r"shape \(1, 2\) for 2 texts"):
        few.encode_documents(["one", "two"])
    for answer in ([], [1.0], [[]], [["a"]]):
        with pytest.raises(InputError, match="'none' gave"):
            PlainEncoder(embed, lambda texts, answer=answer: answer, name="none")


def test_the_fingerprint_tells_models_apart(encoder):
    assert encoder.fingerprint == PlainEncoder(embed, embed, name="plain").fingerprint
    assert encoder.fingerprint != PlainEncoder(embed, embed, name="other").fingerprint
    assert len(encoder.fingerprint) == 16


def test_a_store_works_with_it(encoder):
    with QdrantStore("docs", encoder=encoder) as store:
        report = store.add(Document(text, text) for text in ("one", "two", "zero", "nan"))
        assert report.added == ["one", "two"]
        assert [s.document_id for s in report.skipped] == ["zero", "nan"]
        for mode in ("exact", "two-stage", "document"):
            found = Retriever(store).search("two", mode=mode)
            assert [(p.document_id, p.text) for p in found] == [("two", "two"), ("one", "one")]
            assert found[1].score == pytest.approx(0.8)
