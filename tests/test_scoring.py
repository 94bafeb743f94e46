"""Cosine and MaxSim against plain double loops."""

import numpy as np
import pytest

from lmk_rag.scoring import max_sim, row_scores


def unit_rows(n, width, seed=0):
    rows = np.random.default_rng(seed).normal(size=(n, width)).astype(np.float32)
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def oracle(query, rows):
    return [sum(float(a) * float(b) for a, b in zip(query, row, strict=True)) for row in rows]


def test_row_scores_are_the_dot_products():
    query, rows = np.array([0.6, 0.8], np.float32), np.array([[1, 0], [0, 1], [-0.6, -0.8]])
    assert np.allclose(row_scores(query, rows), [0.6, 0.8, -1.0])


def test_row_scores_equal_a_double_loop():
    rows = unit_rows(50, 17)
    assert np.allclose(row_scores(rows[3], rows), oracle(rows[3], rows), atol=1e-6)
    assert row_scores(rows[3], rows).dtype == np.float32


def test_half_precision_rows_are_summed_in_single_precision():
    rows = unit_rows(50, 768).astype(np.float16)
    query = unit_rows(1, 768, seed=1)[0]
    scores = row_scores(query, rows)
    assert scores.dtype == np.float32
    assert np.allclose(scores, oracle(query, rows), atol=1e-6)


def test_scores_stay_between_minus_1_and_1():
    row = np.full((1, 3), np.float32(1 / np.sqrt(3)) + np.float32(1e-6), np.float32)
    assert row_scores(row[0], row).tolist() == [1.0]
    assert row_scores(-row[0], row).tolist() == [-1.0]


def test_maxsim_of_one_row_is_the_best_row_of_each_group():
    rows = np.array([[0.1, 0], [0.9, 0], [-0.5, 0], [-0.7, 0], [0.3, 0]], np.float32)
    best = max_sim(np.array([[1, 0]], np.float32), rows, np.array([0, 2, 4]))
    assert best.tolist() == [np.float32(0.9), -0.5, np.float32(0.3)]


def test_each_row_of_the_query_finds_a_best_row_of_its_own():
    query = np.array([[0.5, 0], [0, 0.25], [0, 0.25]], np.float32)
    rows = np.array([[1, 0], [0, 1], [0.6, 0.8]], np.float32)
    assert max_sim(query, rows, np.array([0, 2])).tolist() == [1, pytest.approx(0.3 + 0.4)]


@pytest.mark.parametrize("asked", [1, 5, 16, 17, 40])
def test_maxsim_equals_a_double_loop(asked):
    rng = np.random.default_rng(5)
    sizes = rng.integers(1, 9, size=40)
    rows, query = unit_rows(int(sizes.sum()), 12), unit_rows(asked, 12, seed=9) / asked
    first = np.concatenate(([0], np.cumsum(sizes[:-1])))
    expected, at = [], 0
    for size in sizes:
        expected.append(sum(max(oracle(part, rows[at : at + size])) for part in query))
        at += size
    assert np.allclose(max_sim(query, rows, first), expected, atol=1e-6)
    half = max_sim(query, rows.astype(np.float16), first)
    assert half.dtype == np.float32
    assert np.allclose(half, expected, atol=2e-3)


def test_maxsim_stays_between_minus_1_and_1():
    row = np.full((1, 3), np.float32(1 / np.sqrt(3)) + np.float32(1e-6), np.float32)
    for sign in (1, -1):
        assert max_sim(sign * row, row, np.zeros(1, np.int64)).tolist() == [sign]


def test_no_rows_and_no_groups_give_empty_arrays():
    assert row_scores(np.ones(3, np.float32), np.zeros((0, 3), np.float32)).shape == (0,)
    none = max_sim(np.ones((2, 3), np.float32), np.zeros((0, 3), np.float32), np.zeros(0, np.int64))
    assert none.shape == (0,)
