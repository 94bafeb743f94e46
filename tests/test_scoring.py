"""Cosine and MaxSim against plain double loops."""

import numpy as np

from lmk_rag.scoring import best_per_group, row_scores


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


def test_maxsim_is_the_best_row_of_each_group():
    scores = np.array([0.1, 0.9, -0.5, -0.7, 0.3], np.float32)
    best = best_per_group(scores, np.array([0, 2, 4]))
    assert best.tolist() == [np.float32(0.9), -0.5, np.float32(0.3)]


def test_maxsim_equals_a_double_loop():
    rng = np.random.default_rng(5)
    sizes = rng.integers(1, 9, size=40)
    rows, query = unit_rows(int(sizes.sum()), 12), unit_rows(1, 12, seed=9)[0]
    first = np.concatenate(([0], np.cumsum(sizes[:-1])))
    expected, at = [], 0
    for size in sizes:
        expected.append(max(oracle(query, rows[at : at + size])))
        at += size
    assert np.allclose(best_per_group(row_scores(query, rows), first), expected, atol=1e-6)


def test_no_rows_and_no_groups_give_empty_arrays():
    assert row_scores(np.ones(3, np.float32), np.zeros((0, 3), np.float32)).shape == (0,)
    assert best_per_group(np.zeros(0, np.float32), np.zeros(0, np.int64)).shape == (0,)
