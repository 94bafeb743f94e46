"""Words as sparse vectors: BM25's share of a text, without a vocabulary.

BM25 (Robertson and Zaragoza, The Probabilistic Relevance Framework, 2009, section 3.4) scores

    sum over query terms t of  qtf(t) * idf(t) * tf(t) * (k1 + 1) / (tf(t) + k1 * norm)
    norm = 1 - b + b * length / average

The last factor depends on the text alone and is what a text's vector holds; a query's vector
holds qtf, how often the query has the term; Qdrant multiplies by idf when it searches. A word's
index is the CRC-32 of its UTF-8: the same in every process, with no table to keep. Two terms with
one index count as one term.

Two words next to each other are a term as well, with half the weight: "user interface" is more
than both words somewhere. So phrases count without a phrase being marked, which is the sequential
dependence of Metzler and Croft (SIGIR 2005) within a bag of terms. The parts of an identifier stand
next to it and to each other; the ends of sentences part nothing.

No stemming and no stop words: idf makes frequent words nearly worthless in any language.
"""

from __future__ import annotations

import itertools
import unicodedata
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import regex
from numpy.typing import NDArray

from lmk_rag.types import Floats, Ints

_PAIR_WEIGHT = 0.5  # of a pair of words in a query; a word has 1
_PAIR_FACTOR = np.uint32(0x9E3779B1)  # odd, so that no first word is lost modulo 2**32

_RUN = regex.compile(r"[\p{L}\p{M}\p{N}_]+")
# Scripts written without spaces between words, and Hangul, whose words carry their particles.
_SCRIPTS = regex.compile(
    r"(?<unspaced>[\p{scx=Hani}\p{scx=Hira}\p{scx=Kana}\p{scx=Hang}\p{scx=Bopo}\p{scx=Thai}"
    r"\p{scx=Laoo}\p{scx=Khmr}\p{scx=Mymr}\p{scx=Tibt}]+)"
    r"|[^\p{scx=Hani}\p{scx=Hira}\p{scx=Kana}\p{scx=Hang}\p{scx=Bopo}\p{scx=Thai}"
    r"\p{scx=Laoo}\p{scx=Khmr}\p{scx=Mymr}\p{scx=Tibt}]+"
)
_CLUSTER = regex.compile(r"\X")
_PART = regex.compile(
    r"[\p{Lu}\p{Lt}]+(?!\p{Ll})[\p{M}\p{N}]*"  # HTML of parseHTMLFile, UTF8 of toUTF8
    r"|[\p{Lu}\p{Lt}]?[^\p{Lu}\p{Lt}_]+"  # parse and File
)
_LONGEST_KEPT = 64  # characters; longer runs are blobs that hardly come twice


@dataclass(frozen=True, eq=False)
class WordVector:
    """The terms of a text or query.

    Attributes:
        indices: (N,) uint32, increasing: no term comes twice.
        values: (N,) float32, positive.
    """

    indices: NDArray[np.uint32]
    values: Floats

    def __len__(self) -> int:
        return len(self.indices)


@dataclass(frozen=True)
class Bm25:
    """What BM25 needs to know of a kind of text.

    Attributes:
        k1: how long a term goes on counting as it comes again.
        b: how far length is held against a text, from 0 to 1.
        average: the length, in words, that counts as usual. It can't follow a collection as it
            grows, for what is stored would have to be written again.
    """

    k1: float
    b: float
    average: int


@dataclass(frozen=True)
class WordRule:
    """What a collection counts of words; all of its points are written by one rule.

    In a segment one mention says most. Over a document a term may come often before it is enough,
    and length is held against it more, or the longest would win (benchmarks/bm25_rules.md).

    Attributes:
        segment: of segments.
        document: of whole documents; None: words are counted by segment alone.
        pairs: whether two words next to each other are a term as well.
    """

    segment: Bm25 = Bm25(0.9, 0.6, 512)
    document: Bm25 | None = Bm25(2.0, 0.82, 8_192)
    pairs: bool = True


@dataclass(frozen=True, eq=False)
class Terms:
    """Every word of a text, in order.

    Attributes:
        indices: (T,) uint32: CRC-32 of each.
        starts: (T,) int64, not decreasing: the character its word begins at.
    """

    indices: NDArray[np.uint32]
    starts: Ints

    def vector(self, start: int, end: int, rule: Bm25, *, pairs: bool) -> WordVector:
        """Return BM25's share of the words that begin in [start, end).

        Args:
            start, end: characters.
            rule: the same for all such texts of a collection.
            pairs: count pairs of words too.

        Returns:
            values in (0, k1 + 1).
        """
        first, last = np.searchsorted(self.starts, (start, end)).tolist()
        own = self.indices[first:last]
        if pairs:
            own = np.concatenate([own, _pair_indices(own)])
        indices, counts = np.unique(own, return_counts=True)
        norm = 1 - rule.b + rule.b * (last - first) / rule.average
        values = counts * (rule.k1 + 1) / (counts + rule.k1 * norm)
        return WordVector(indices, values.astype(np.float32))


def terms(text: str) -> Terms:
    """Return the words of a text as terms; see `words`."""
    found = [
        (index, match.start() + offset)
        for match in _RUN.finditer(text)
        for index, offset in _indices_of(match[0])
    ]
    both = np.array(found, np.int64).reshape(-1, 2)
    return Terms(both[:, 0].astype(np.uint32), both[:, 1])


def query_vector(text: str, *, pairs: bool) -> WordVector:
    """Return a query's terms with how often each comes; none where the text has no word.

    Args:
        text: the query.
        pairs: look for pairs of words too, each counting half.
    """
    found = terms(text).indices
    both = np.concatenate([found, _pair_indices(found)]) if pairs else found
    weights = np.full(len(both), _PAIR_WEIGHT)
    weights[: len(found)] = 1
    indices, inverse = np.unique(both, return_inverse=True)
    return WordVector(indices, np.bincount(inverse, weights).astype(np.float32))


def words(text: str) -> Iterator[tuple[str, int]]:
    """Yield the words of a text with the character each begins at, in order.

    A word is a run of letters, marks, digits and underscores, compatibility forms (NFKC) and case
    folded away. An identifier is a word, and so is each part of it: `parseHTML_file` gives
    `parsehtml_file`, `parse`, `html` and `file`. Chinese, Japanese, Korean, Thai and other
    scripts without spaces give overlapping pairs of characters, a lone character itself.
    """
    for match in _RUN.finditer(text):
        for word, offset in _words_of(match[0]):
            yield word, match.start() + offset


def _pair_indices(indices: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """Return (T - 1,) the index of each pair of neighbors; products wrap around."""
    return np.asarray(indices[:-1] * _PAIR_FACTOR + indices[1:])


def _indices_of(run: str) -> tuple[tuple[int, int], ...]:
    return _kept_indices(run) if len(run) <= _LONGEST_KEPT else _hashed(run)


def _hashed(run: str) -> tuple[tuple[int, int], ...]:
    return tuple((zlib.crc32(word.encode("utf-8")), at) for word, at in _words_of(run))


_kept_indices = lru_cache(maxsize=2**16)(_hashed)  # texts repeat their words


def _words_of(run: str) -> Iterator[tuple[str, int]]:
    if run.isascii():
        yield from _identifiers(run, 0)
        return
    for match in _SCRIPTS.finditer(run):
        if match["unspaced"] is None:
            yield from _identifiers(match[0], match.start())
        else:
            yield from _pairs(match[0], match.start())


def _identifiers(run: str, start: int) -> Iterator[tuple[str, int]]:
    """Yield a word, and its parts if it has several."""
    parts = _parts(run)
    if parts:
        yield _folded(run), start
    if len(parts) > 1 or (parts and "_" in run):
        for part in parts:
            yield _folded(part), start


def _pairs(run: str, start: int) -> Iterator[tuple[str, int]]:
    """Yield overlapping pairs of what a reader calls a character: a letter with its marks."""
    clusters = [(match[0], start + match.start()) for match in _CLUSTER.finditer(run)]
    if len(clusters) == 1:
        yield _folded(run), start
    for (first, at), (second, _) in itertools.pairwise(clusters):
        yield _folded(first + second), at


def _parts(run: str) -> list[str]:
    """Return the parts of an identifier; any other word is its own only part."""
    if "_" not in run and (run.islower() or run[1:] == run[1:].lower()):
        return [run]
    return [part for part in _PART.findall(run) if part.strip("_")]


def _folded(word: str) -> str:
    if word.isascii():
        return word.lower()
    return unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", word).casefold())
