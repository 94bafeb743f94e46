"""Word, sentence, line and paragraph ends as character positions of the original text."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import regex
from numpy.typing import NDArray

Marks = NDArray[np.bool_]

# Unicode's default word rule (UAX #29), which keeps "don't", "3.14" and "foo_bar" whole and
# lets every Han character be a word of its own.
_WORD_EDGE = regex.compile(r"(?w)\b")

# A sentence ends after . ! ? or … (and closing quotes or brackets) when white space follows,
# unless what follows is lower case or what precedes is a single capital ("J. Smith") or a
# title; after CJK full stops and the Devanagari danda always.
_SENTENCE_END = regex.compile(
    r"(?:(?<!\b\p{Lu})(?<!\b(?:Dr|Mr|Mrs|Ms|Prof|St|No|vs|Fig|Sec|cf|e\.g|i\.e))\.|[!?…‽]|(?<!\.)\.{2,}+)"
    r"[\"'”’»)\]}*_`]*(?=\s+[^\p{Ll}\s]|\s*$)"
    r"|[。！？｡．।॥؟۔][”’」』】）》]*"
)
# The engine counts flags (pairs of regional indicators) from their first on, at each of them.
_FLAG_LETTER = regex.compile(r"[🇦-🇿]")
_FLAG = regex.compile(r"[🇦-🇿]{2}")
_LINE_END = regex.compile(r"\n")
_PARAGRAPH_END = regex.compile(r"\n[ \t\r]*\n\s*")


def word_edges(text: str) -> Marks:
    """Mark where a cut splits no word.

    Returns:
        (len(text) + 1,) bool: entry i is True if cutting between characters i - 1 and i is fine.
    """
    flagless = _FLAG_LETTER.sub("字", text)  # an edge on both sides of each
    marks = _marks(text, (match.start() for match in _WORD_EDGE.finditer(flagless)))
    marks[[match.start() + 1 for match in _FLAG.finditer(text)]] = False
    return marks | _beside_space(text)


def sentence_edges(text: str) -> Marks:
    """Mark sentence and line ends, after the white space that follows them.

    Returns:
        (len(text) + 1,) bool, True where a sentence or line ends; both ends of the text count.
    """
    ends = _marks(text, (match.end() for match in _SENTENCE_END.finditer(text)))
    ends |= _marks(text, (match.end() for match in _LINE_END.finditer(text)))
    return _after_space(text, ends)


def edge_strength(text: str) -> NDArray[np.int8]:
    """Grade every cut: 3 paragraph end, 2 sentence end, 1 line end, 0 anything else.

    A line end ranks below a sentence end because hard-wrapped prose breaks lines anywhere.

    Returns:
        (len(text) + 1,) int8. White space after an end carries the end's grade.
    """
    strength = np.zeros(len(text) + 1, dtype=np.int8)
    for grade, pattern in ((1, _LINE_END), (2, _SENTENCE_END), (3, _PARAGRAPH_END)):
        ends = _marks(text, (match.end() for match in pattern.finditer(text)))
        strength[_after_space(text, ends)] = grade
    return strength


def space_marks(text: str) -> Marks:
    """Mark white space: (len(text),) bool."""
    # Tested once per distinct character: texts are long, alphabets are small.
    codes = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), dtype=np.uint32)
    distinct, where = np.unique(codes, return_inverse=True)
    is_space = np.fromiter((chr(code).isspace() for code in distinct), np.bool_, len(distinct))
    return np.asarray(is_space[where], dtype=np.bool_)


def _marks(text: str, positions: Iterator[int]) -> Marks:
    marks = np.zeros(len(text) + 1, dtype=np.bool_)
    marks[np.fromiter(positions, dtype=np.int64)] = True
    marks[0] = marks[len(text)] = True
    return marks


def _beside_space(text: str) -> Marks:
    marks = np.zeros(len(text) + 1, dtype=np.bool_)
    spaces = space_marks(text)
    marks[1:] |= spaces
    marks[:-1] |= spaces
    return marks


def _after_space(text: str, ends: Marks) -> Marks:
    """Carry marks to the right over runs of white space: a cut there loses nothing."""
    positions = np.arange(len(text) + 1)
    # For each cut, where the run of white space just before it begins.
    run_start = np.maximum.accumulate(
        np.where(np.concatenate(([True], ~space_marks(text))), positions, 0)
    )
    last_end = np.maximum.accumulate(np.where(ends, positions, -1))
    return np.asarray(last_end >= run_start, dtype=np.bool_)
