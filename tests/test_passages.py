"""Stretches around the best landmarks: budget, sentence ends, exact offsets."""

import numpy as np
import pytest

from lmk_rag import passages
from lmk_rag.boundaries import edge_strength
from lmk_rag.passages import best_stretches
from lmk_rag.queries import vector_only


def lay_out(pieces, scores):
    """Text, spans and rows of which the first axis is the score of each piece."""
    text, spans = "", []
    for piece in pieces:
        spans.append((len(text), len(text) + len(piece)))
        text += piece
    scores = np.array(scores, np.float32)
    rows = np.stack((scores, np.sqrt(1 - scores**2)), axis=1)
    return text, np.array(spans, np.int64), rows


def find(pieces, scores, *, budget, n=1, tokens=None):
    text, spans, rows = lay_out(pieces, scores)
    if tokens is None:
        tokens = [len(piece.split()) for piece in pieces]
    found = best_stretches(
        text,
        spans,
        np.array(tokens),
        rows,
        vector_only(np.array([1, 0], np.float32)),
        budget=budget,
        n=n,
    )
    return text, found


def texts(text, found):
    return [text[stretch.start : stretch.end] for stretch in found]


SENTENCES = ["One two. ", "Three four. ", "Five six. ", "Seven eight. ", "Nine ten."]


def test_grows_to_the_better_neighbor_within_the_budget():
    text, found = find(SENTENCES, [0.1, 0.5, 0.9, 0.4, 0.8], budget=4)
    assert texts(text, found) == ["Three four. Five six."]
    text, found = find(SENTENCES, [0.1, 0.3, 0.9, 0.4, 0.8], budget=6)
    assert texts(text, found) == ["Five six. Seven eight. Nine ten."]


def test_a_stretch_says_where_its_best_landmark_is():
    text, (stretch,) = find(SENTENCES, [0.1, 0.5, 0.9, 0.4, 0.8], budget=6)
    assert (stretch.first, stretch.last) == (1, 3)
    assert text[stretch.best_start : stretch.best_end] == "Five six."
    assert stretch.score == pytest.approx(0.9)


def test_a_broken_sentence_is_finished_before_better_neighbors_are_taken():
    pieces = ["All is well. ", "To restart it, hold ", "the red button. Go. ", "Then rest."]
    text, found = find(pieces, [0.8, 0.9, 0.2, 0.1], budget=8)
    assert texts(text, found) == ["To restart it, hold the red button. Go."]


def test_both_ends_are_drawn_in_to_sentence_ends():
    pieces = ["A start of it. The sun ", "rises. Here is the key. It ", "sets. And the end of"]
    text, found = find(pieces, [0.1, 0.9, 0.2], budget=100)
    assert texts(text, found) == [text]
    text, found = find(
        ["x y z", " tail. The sun ", "rises late. ", "The moon ", "sets"],
        [0.0, 0.4, 0.9, 0.5, 0.1],
        budget=7,
    )
    assert texts(text, found) == ["The sun rises late."]


def test_line_ends_serve_where_there_are_no_sentence_ends():
    pieces = ["def f(x):\n    y = ", "x + 1\n    return y\n", "def g(", "x): pass"]
    text, found = find(pieces, [0.2, 0.9, 0.3, 0.1], budget=9)
    assert texts(text, found) == ["def f(x):\n    y = x + 1\n    return y"]


def test_the_best_landmark_stays_whole_where_nothing_ends():
    text, found = find(["aa bb ", "cc dd ", "ee ff"], [0.2, 0.9, 0.1], budget=2)
    assert texts(text, found) == ["cc dd"]


def test_cjk_sentences_end_without_white_space():
    pieces = ["今日は雨です。明日", "は晴れます。鍵は箱", "の中です。傘は", "要りません"]
    text, found = find(pieces, [0.1, 0.9, 0.5, 0.2], budget=2, tokens=[1, 1, 1, 1])
    assert texts(text, found) == ["は晴れます。鍵は箱の中です。"]


def test_a_stretch_keeps_to_the_budget_unless_one_landmark_exceeds_it():
    rng = np.random.default_rng(0)
    for _ in range(200):
        n = int(rng.integers(1, 12))
        tokens = rng.integers(1, 9, size=n)
        pieces = ["w " * int(t) for t in tokens]
        budget = int(rng.integers(1, 20))
        _, found = find(pieces, rng.uniform(-1, 1, size=n), budget=budget, n=3, tokens=tokens)
        for s in found:
            spent = tokens[s.first : s.last + 1].sum()
            assert spent <= budget or s.first == s.last


def test_several_stretches_share_no_landmark_and_come_best_first():
    rng = np.random.default_rng(1)
    for _ in range(200):
        n = int(rng.integers(1, 15))
        pieces = [f"word{i}. " if rng.random() < 0.5 else f"word{i} " for i in range(n)]
        scores = rng.uniform(-1, 1, size=n)
        text, found = find(pieces, scores, budget=int(rng.integers(1, 5)), n=4)
        taken = [i for s in found for i in range(s.first, s.last + 1)]
        assert len(taken) == len(set(taken))
        assert [s.score for s in found] == sorted((s.score for s in found), reverse=True)
        for s in found:
            assert text[s.start : s.end] == text[s.start : s.end].strip() != ""
            assert s.start <= s.best_start < s.best_end <= s.end
            assert s.score == pytest.approx(scores[s.first : s.last + 1].max(), abs=1e-6)


def test_no_more_stretches_than_asked_for_or_there_are():
    assert len(find(SENTENCES, [0.1, 0.2, 0.3, 0.4, 0.5], budget=2, n=3)[1]) == 3
    assert len(find(SENTENCES, [0.1, 0.2, 0.3, 0.4, 0.5], budget=2, n=9)[1]) == 5
    assert len(find(SENTENCES, [0.1, 0.2, 0.3, 0.4, 0.5], budget=99, n=9)[1]) == 1


def test_white_space_alone_is_no_stretch():
    text, found = find(["Real text. ", "\n \n"], [0.1, 0.9], budget=1, n=2, tokens=[2, 1])
    assert texts(text, found) == ["Real text."]


def test_a_blank_best_landmark_lies_within_its_stretch():
    text, (stretch,) = find(["Real text. ", "\n \n"], [0.1, 0.9], budget=9, tokens=[2, 1])
    assert text[stretch.start : stretch.end] == "Real text."
    assert stretch.start <= stretch.best_start <= stretch.best_end <= stretch.end


def test_equal_scores_give_the_same_answer_every_time():
    first = find(SENTENCES, [0.5] * 5, budget=4, n=2)
    assert find(SENTENCES, [0.5] * 5, budget=4, n=2) == first


def test_edges_worked_out_near_the_best_landmark_are_those_of_the_whole_text():
    text = "Dr. Alpha met Beta. Then e.g. gamma!\n\nDelta, eps.\n" * 60
    bounds = np.arange(0, len(text) + 1, len(text) // 60)
    spans = np.stack((bounds[:-1], bounds[1:]), axis=1)
    tokens = np.full(len(spans), 12)
    whole = edge_strength(text)
    for best in (0, 17, 59):
        near = passages._strength_near(text, spans, tokens, best, budget=48)
        low, high = spans[max(0, best - 4), 0], spans[min(59, best + 4), 1]
        assert near[low : high + 1].tolist() == whole[low : high + 1].tolist()
        assert not near[: max(0, low - 1)].any()
