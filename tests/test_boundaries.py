"""Word, sentence, line and paragraph ends."""

import itertools

import numpy as np
import pytest

from lmk_rag.boundaries import edge_strength, sentence_edges, space_marks, word_edges


def cut_at(text: str, marks) -> list[str]:
    """The pieces of a text cut at every mark."""
    positions = np.flatnonzero(marks)
    return [text[a:b] for a, b in itertools.pairwise(positions)]


@pytest.mark.parametrize(
    ("text", "pieces"),
    [
        ("I don't know", ["I", " ", "don't", " ", "know"]),
        ("3.14 or 1,000", ["3.14", " ", "or", " ", "1,000"]),
        ("foo_bar(x)", ["foo_bar", "(", "x", ")"]),
        ("日本語", ["日", "本", "語"]),
        ("שלום abc", ["שלום", " ", "abc"]),
        ("a\n\tb", ["a", "\n", "\t", "b"]),
        ("👩‍👩‍👧 x", ["👩‍👩‍👧", " ", "x"]),
        ("e\u0301a\u0301", ["e\u0301a\u0301"]),
        ("🇩🇪🇫🇷🇮🇹", ["🇩🇪", "🇫🇷", "🇮🇹"]),
        ("\ud800ab c", ["\ud800", "ab", " ", "c"]),
        ("", []),
    ],
)
def test_word_edges_never_split_a_word(text, pieces):
    assert cut_at(text, word_edges(text)) == pieces


@pytest.mark.parametrize(
    ("text", "pieces"),
    [
        ("It is. So it is.", ["It is.", "So it is."]),
        ('He said "no!" Then he left.', ['He said "no!"', "Then he left."]),
        ("Wait... What? Yes", ["Wait...", "What?", "Yes"]),
        ("Dr. Smith met J. Doe.", ["Dr. Smith met J. Doe."]),
        ("See e.g. this. And i.e. that", ["See e.g. this.", "And i.e. that"]),
        ("version 3.14 of it", ["version 3.14 of it"]),
        ("approx. seven", ["approx. seven"]),
        ("日本。中国！", ["日本。", "中国！"]),
        ("क। ख॥ ग", ["क।", "ख॥", "ग"]),
        ("هل؟ نعم", ["هل؟", "نعم"]),
        ("one\ntwo\r\nthree", ["one", "two", "three"]),
    ],
)
def test_sentence_edges_end_sentences_and_lines(text, pieces):
    assert [p.strip() for p in cut_at(text, sentence_edges(text)) if p.strip()] == pieces


def test_a_cut_anywhere_in_the_white_space_after_a_sentence_counts():
    assert np.flatnonzero(sentence_edges("It.  Yes")).tolist() == [0, 3, 4, 5, 8]


def test_white_space_before_a_line_end_is_not_yet_its_end():
    assert np.flatnonzero(sentence_edges("ab  \ncd")).tolist() == [0, 5, 7]


def test_edges_of_an_empty_text_are_its_one_position():
    assert word_edges("").tolist() == [True]
    assert sentence_edges("").tolist() == [True]
    assert space_marks("").tolist() == []


def test_strength_ranks_paragraphs_over_sentences_over_lines():
    text = "One. Two\nthree\n\nfour"
    assert "".join(map(str, edge_strength(text))) == "300022000100000130003"


def test_space_marks_know_the_spaces_of_unicode():
    assert space_marks("a\u00a0b\u3000\u200b\t\n").tolist() == [
        False,
        True,
        False,
        True,
        False,
        True,
        True,
    ]


@pytest.mark.parametrize(
    "text",
    [
        "." * 300_000 + "x",
        "🇩" * 300_000,
        "A" * 300_000,
        "\n " * 150_000 + "x",
        "!" + ")" * 300_000 + "x",
        "e\u0301" * 150_000,
        "." + " " * 300_000 + "x",
    ],
    ids=["dots", "flags", "letters", "lines", "brackets", "accents", "spaces"],
)
def test_long_runs_of_one_character_take_linear_time(text):
    # Quadratic time would be hours here: the suite would never end.
    for find in (word_edges, sentence_edges, edge_strength):
        assert len(find(text)) == len(text) + 1
