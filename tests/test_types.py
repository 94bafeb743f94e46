"""The values that flow between the stages."""

import dataclasses

import numpy as np
import pytest

from lmk_rag.types import Document, DocumentEmbedding, Passage


@pytest.fixture
def embedding() -> DocumentEmbedding:
    return DocumentEmbedding(
        vector=np.array([0.6, 0.8], np.float32),
        landmarks=np.array([[1, 0], [0, 1], [0.6, 0.8]], np.float32),
        norms=np.array([1, 3, 5], np.float32),
        spans=np.array([[0, 4], [4, 9], [9, 10]]),
        landmark_tokens=np.array([2, 2, 1]),
        n_windows=1,
    )


def test_tokens_and_landmarks_are_counted(embedding):
    assert embedding.n_tokens == 5
    assert embedding.n_landmarks == 3
    assert isinstance(embedding.n_tokens, int)


def test_a_stretch_of_one_landmark_is_that_landmark(embedding):
    assert embedding.stretch_vector(1, 1).tolist() == [0, 1]


def test_a_stretch_averages_the_raw_states_and_not_the_unit_rows(embedding):
    raw = np.array([1, 3]) / 2  # (1, 0) and (0, 3)
    np.testing.assert_allclose(embedding.stretch_vector(0, 1), raw / np.linalg.norm(raw), rtol=1e-6)
    assert embedding.stretch_vector(0, 1).dtype == np.float32


def test_the_whole_stretch_is_the_document_vector(bert):
    (embedding,) = bert.encode_documents(["the pump stops when the valve closes " * 4])
    last = embedding.n_landmarks - 1
    np.testing.assert_allclose(embedding.stretch_vector(0, last), embedding.vector, atol=1e-6)


def test_documents_do_not_share_their_metadata():
    first, second = Document("a", "x"), Document("b", "y")
    assert first.metadata == {}
    assert first.metadata is not second.metadata


@pytest.mark.parametrize("kind", [Document, DocumentEmbedding, Passage])
def test_values_are_frozen(kind):
    assert dataclasses.is_dataclass(kind)
    assert kind.__dataclass_params__.frozen
