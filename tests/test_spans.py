"""Cut positions, spans and windows from hand-made offsets."""

import numpy as np
import pytest

from lmk_rag.config import LandmarkConfig
from lmk_rag.errors import CheckpointError
from lmk_rag.spans import find_cuts, tile, window_runs


def cut(text: str, offsets: list[tuple[int, int]], **config):
    """Token cuts and spans of a text."""
    cuts = find_cuts(text, np.array(offsets).reshape(-1, 2), LandmarkConfig(**config))
    return cuts.tokens.tolist(), tile(cuts.characters).tolist()


def words_of(text: str) -> list[tuple[int, int]]:
    """One token per white-space word."""
    offsets, position = [], 0
    for word in text.split():
        start = text.index(word, position)
        offsets.append((start, position := start + len(word)))
    return offsets


def test_token_boundary_cuts_after_exactly_k_tokens_and_the_last_is_shorter():
    text = "aa bb cc dd ee"
    assert cut(text, words_of(text), granularity=2, boundary="token") == (
        [0, 2, 4, 5],
        [[0, 6], [6, 12], [12, 14]],
    )


def test_token_boundary_adds_no_empty_stretch_when_k_divides_the_tokens():
    text = "aa bb cc dd"
    assert cut(text, words_of(text), granularity=2, boundary="token")[0] == [0, 2, 4]


def test_word_boundary_goes_back_to_the_last_word_edge():
    # tokens: un|believ|able  story  here
    offsets = [(0, 2), (2, 8), (8, 12), (13, 18), (19, 23)]
    assert cut("unbelievable story here", offsets, granularity=4, boundary="word")[0] == [0, 4, 5]
    offsets = [(0, 5), (6, 8), (8, 14), (14, 18)]
    assert cut("story unbelievable", offsets, granularity=3, boundary="word") == (
        [0, 1, 4],
        [[0, 6], [6, 18]],
    )


def test_word_boundary_cuts_a_word_of_more_than_k_tokens_after_k():
    offsets = [(i, i + 1) for i in range(7)]
    assert cut("abcdefg", offsets, granularity=3, boundary="word")[0] == [0, 3, 6, 7]


def test_word_boundary_does_not_cut_between_tokens_that_share_a_character():
    # "ab 🚀 c": the rocket is four byte tokens that all report its one character.
    offsets = [(0, 2), (2, 3), (3, 4), (3, 4), (3, 4), (3, 4), (4, 5), (5, 6)]
    assert cut("ab 🚀 c", offsets, granularity=5, boundary="word") == (
        [0, 2, 7, 8],
        [[0, 3], [3, 5], [5, 6]],
    )


def test_sentence_boundary_takes_the_end_nearest_to_k():
    text = "A b. C d e f. G h i j k l. M n."
    assert cut(text, words_of(text), granularity=5, boundary="sentence")[0] == [0, 6, 12, 14]


def test_sentence_boundary_looks_as_far_as_one_and_a_half_k_and_no_further():
    text = "a b c d e f. G h"
    assert cut(text, words_of(text), granularity=4, boundary="sentence")[0] == [0, 6, 8]
    text = "a b c d e f g. G h"
    assert cut(text, words_of(text), granularity=4, boundary="sentence")[0] == [0, 4, 7, 9]


def test_sentence_boundary_counts_line_ends():
    text = "alpha beta\ngamma delta epsilon zeta"
    assert cut(text, words_of(text), granularity=4, boundary="sentence")[1] == [[0, 11], [11, 35]]


def test_white_space_between_tokens_stays_with_the_stretch_before():
    text = "aa  \n bb"
    assert cut(text, [(0, 2), (6, 8)], granularity=1, boundary="token")[1] == [[0, 6], [6, 8]]


def test_white_space_inside_the_next_token_stays_with_the_stretch_before():
    # byte-level tokens carry their leading space
    assert cut("aa  bb", [(0, 2), (2, 6)], granularity=1, boundary="token")[1] == [[0, 4], [4, 6]]


def test_a_token_of_white_space_alone_keeps_its_own_span():
    offsets = [(0, 2), (2, 4), (4, 6)]
    assert cut("aa  bb", offsets, granularity=1, boundary="token")[1] == [[0, 2], [2, 4], [4, 6]]


def test_characters_before_the_first_token_belong_to_the_first_stretch():
    assert cut("\ufeff  ab", [(3, 4), (4, 5)], granularity=1, boundary="token")[1] == [
        [0, 4],
        [4, 5],
    ]


def test_characters_after_the_last_token_belong_to_the_last_stretch():
    assert cut("ab\u200b \n", [(0, 1), (1, 2)], granularity=1, boundary="token")[1] == [
        [0, 1],
        [1, 5],
    ]


def test_several_landmarks_inside_one_character_all_name_it():
    offsets = [(0, 1), (1, 2), (1, 2), (1, 2), (2, 3)]
    assert cut("a日b", offsets, granularity=1, boundary="token")[1] == [
        [0, 1],
        [1, 2],
        [1, 2],
        [1, 2],
        [2, 3],
    ]


def test_several_landmarks_inside_the_first_character_all_name_it():
    assert cut("日", [(0, 1)] * 3, granularity=1, boundary="token")[1] == [[0, 1]] * 3


def test_a_text_without_tokens_is_one_span():
    assert cut("\u200b\u200b", [], granularity=4) == ([0, 0], [[0, 2]])


def test_an_empty_text_is_one_empty_span():
    assert cut("", [], granularity=4) == ([0, 0], [[0, 0]])


def test_offsets_that_go_backwards_still_tile():
    offsets = [(0, 4), (2, 3), (3, 6), (5, 5), (6, 8)]
    assert cut("abcdefgh", offsets, granularity=1, boundary="token")[1] == [
        [0, 4],
        [3, 4],
        [4, 6],
        [5, 6],
        [6, 8],
    ]


def test_offsets_outside_the_text_are_refused():
    with pytest.raises(CheckpointError, match=r"offsets 0\.\.9 for a text of 3"):
        cut("abc", [(0, 9)], granularity=1)


def runs(costs, *, room, overlap):
    """Windows over stretches of these token counts, one landmark each."""
    tokens = np.array(costs)
    return window_runs(tokens + 1, tokens, room, overlap)


def test_stretches_that_fit_make_one_window():
    assert runs([4, 4, 4], room=15, overlap=4) == [(0, 0, 3)]


def test_a_window_begins_with_the_stretches_within_the_overlap():
    assert runs([4] * 6, room=15, overlap=4) == [(0, 0, 3), (2, 3, 5), (4, 5, 6)]


def test_the_overlap_is_rounded_down_to_whole_stretches():
    assert runs([4] * 6, room=15, overlap=7) == runs([4] * 6, room=15, overlap=4)
    assert runs([4] * 6, room=15, overlap=3) == [(0, 0, 3), (3, 3, 6)]


def test_an_overlap_larger_than_the_window_still_moves_on():
    assert runs([4] * 5, room=15, overlap=1000) == [(0, 0, 3), (1, 3, 4), (2, 4, 5)]


def test_context_gives_way_to_a_long_stretch():
    assert runs([4, 4, 14], room=15, overlap=8) == [(0, 0, 2), (2, 2, 3)]
