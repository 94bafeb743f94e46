"""Pooling over hand-made states."""

import torch

from lmk_rag.pooling import landmark_rows, stretch_means, window_extras

STATES = torch.tensor(
    [
        [[1.0, 0.0], [2.0, 2.0], [4.0, 6.0], [0.0, 9.0]],
        [[3.0, 1.0], [5.0, 5.0], [float("nan"), 7.0], [float("nan"), float("inf")]],
    ]
)
LENGTHS = torch.tensor([4, 2])


def test_landmark_rows_are_the_states_at_their_positions():
    rows = landmark_rows(STATES, torch.tensor([0, 0, 1]), torch.tensor([3, 1, 1]))
    assert rows.tolist() == [[0.0, 9.0], [2.0, 2.0], [5.0, 5.0]]


def test_rows_are_float32_whatever_the_states_are():
    half = STATES.bfloat16()
    where = torch.tensor([0])
    assert landmark_rows(half, where, where).dtype == torch.float32
    assert stretch_means(half, where, where, where + 2).dtype == torch.float32
    sums, counts = window_extras(half, torch.zeros(1, 2), where, torch.ones(1), LENGTHS, "mean")
    assert sums.dtype == counts.dtype == torch.float32


def test_stretch_means_average_each_token_range():
    rows = stretch_means(
        STATES, torch.tensor([0, 0, 1]), torch.tensor([0, 1, 0]), torch.tensor([1, 4, 2])
    )
    assert rows.tolist() == [[1.0, 0.0], [2.0, 17 / 3], [4.0, 3.0]] or torch.allclose(
        rows, torch.tensor([[1.0, 0.0], [2.0, 17 / 3], [4.0, 3.0]])
    )


def test_an_empty_stretch_has_a_zero_mean():
    where = torch.tensor([0, 0, 1])
    rows = stretch_means(STATES, where, torch.tensor([2, 1, 1]), torch.tensor([2, 2, 1]))
    assert rows.tolist() == [[0.0, 0.0], [2.0, 2.0], [0.0, 0.0]]


def test_no_stretch_gives_no_row():
    none = torch.zeros(0, dtype=torch.int64)
    assert stretch_means(STATES, none, none, none).shape == (0, 2)


def test_means_sum_in_float32():
    states = torch.full((1, 4_096, 1), 1.0078125, dtype=torch.bfloat16)
    zero = torch.tensor([0])
    assert stretch_means(states, zero, zero, zero + 4_096).item() == 1.0078125


def test_landmarks_have_no_extras():
    sums, counts = window_extras(
        STATES, torch.ones(2, 2), torch.tensor([0, 1]), torch.ones(2), LENGTHS, "lmk"
    )
    assert sums.tolist() == [[0.0, 0.0], [0.0, 0.0]]
    assert counts.tolist() == [0.0, 0.0]


def test_extras_of_cls_are_the_first_states():
    sums, counts = window_extras(
        STATES, torch.ones(2, 2), torch.tensor([0, 1]), torch.ones(2), LENGTHS, "cls"
    )
    assert sums.tolist() == [[1.0, 0.0], [3.0, 1.0]]
    assert counts.tolist() == [1.0, 1.0]


def test_extras_of_mean_are_the_tokens_in_no_stretch_and_no_padding():
    # window 0: [CLS] a b [SEP] with one stretch of two tokens; window 1: [CLS] and one token
    rows = torch.tensor([[3.0, 4.0], [5.0, 5.0]])
    sums, counts = window_extras(
        STATES, rows, torch.tensor([0, 1]), torch.tensor([2.0, 1.0]), LENGTHS, "mean"
    )
    assert sums.tolist() == [[1.0, 9.0], [3.0, 1.0]]
    assert counts.tolist() == [2.0, 1.0]
