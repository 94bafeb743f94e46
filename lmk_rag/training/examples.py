"""Training examples: a document, and the queries that are answered in parts of it.

One shape holds all data: a pair is a document of one part with one query; a long text without
queries teaches landmarks only; passages put behind each other, or a page whose sections are known,
are a document of several parts, each with its queries.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lmk_rag.errors import TrainingDataError
from lmk_rag.json_lines import read_json_lines

_UNDERLINE = re.compile(r"\s*([=\-~^*+#])\1{2,}\s*")
_SPACE = re.compile(r"\s")
_FAR = 4  # lengths of a piece that its line may go on for before it is cut elsewhere
_PROBE = 120  # characters of a positive by which it is looked for in a text


@dataclass(frozen=True)
class Query:
    """A query and the part of its document that answers it.

    Attributes:
        text: the query.
        part: index into `Example.parts`.
        negatives: texts that do not answer it (hard negatives).
    """

    text: str
    part: int = 0
    negatives: tuple[str, ...] = ()


@dataclass(frozen=True)
class Example:
    """One document to learn from.

    Attributes:
        text: the document.
        queries: may be empty.
        parts: (start, end) character ranges, in order; those that queries point to. Text outside
            of them belongs to no part.
        source: where it is from; a batch holds one source.
    """

    text: str
    queries: tuple[Query, ...]
    parts: tuple[tuple[int, int], ...]
    source: str


@dataclass(frozen=True)
class Pair:
    """A query, the text that answers it, and texts that don't."""

    query: str
    positive: str
    negatives: tuple[str, ...] = ()


def read_pairs(path: Path) -> list[Pair]:
    """Read `{"query", "positive"}` lines, with `"negatives"`, a list of texts, if there are any.

    Raises:
        TrainingDataError: names the file and the line.
    """
    pairs = []
    for place, record in _records(path):
        query, positive = record.get("query"), record.get("positive")
        negatives = record.get("negatives", [])
        unknown = sorted(set(record) - {"query", "positive", "negatives"})
        if unknown:  # a key misspelled would be negatives lost
            raise TrainingDataError(f"{place} has the unknown keys {', '.join(unknown)}")
        texts = [query, positive, *(negatives if isinstance(negatives, list) else [None])]
        if not all(isinstance(text, str) and text.strip() for text in texts):
            raise TrainingDataError(
                f'{place} holds {str(record)[:80]!r}; expected "query", "positive" and, if '
                'any, a list "negatives", all of them texts that are not blank'
            )
        pairs.append(Pair(str(query), str(positive), tuple(negatives)))
    return pairs


def read_texts(path: Path) -> list[str]:
    """Read the `"text"` of every line.

    Raises:
        TrainingDataError: names the file and the line.
    """
    texts = []
    for place, record in _records(path):
        text = record.get("text")
        if not isinstance(text, str) or not text.strip():
            raise TrainingDataError(
                f'{place} holds {str(record)[:80]!r}; expected a "text" that is not blank'
            )
        texts.append(text)
    return texts


def from_pairs(pairs: Iterable[Pair], source: str) -> list[Example]:
    """Make one example per pair."""
    return [
        Example(
            text=pair.positive,
            queries=(Query(pair.query, 0, pair.negatives),),
            parts=((0, len(pair.positive)),),
            source=source,
        )
        for pair in pairs
    ]


def concatenate(pairs: Sequence[Pair], size: int, source: str, seed: int) -> list[Example]:
    """Put `size` positives behind each other, in a random order; each is a part with its queries.

    A positive of several pairs stands in one document, with all of their queries. What is left
    over is left out.
    """
    of: dict[str, list[Pair]] = {}
    for pair in pairs:
        of.setdefault(pair.positive, []).append(pair)
    order = list(of)
    random.Random(seed).shuffle(order)  # noqa: S311  # not for secrets
    examples = []
    for first in range(0, len(order) - size + 1, size):
        text, parts, queries = "", [], []
        for positive in order[first : first + size]:
            text += "\n\n" if text else ""
            parts.append((len(text), len(text) + len(positive)))
            queries += [Query(pair.query, len(parts) - 1, pair.negatives) for pair in of[positive]]
            text += positive
        examples.append(Example(text, tuple(queries), tuple(parts), source))
    return examples


def from_texts(
    texts: Iterable[str], pairs: Sequence[Pair], *, length: int, source: str
) -> list[Example]:
    """Cut long texts into pieces of about `length` characters and find the pairs answered there.

    A pair belongs to a piece that holds the beginning of its positive; the whole piece is then
    what the query is to find (its only part), as someone looking for a page by a heading would.
    Its heading (what follows the last ": " of the query, where it stands marked as a heading) is
    taken out, or the query would be there to be copied. Pairs that are found nowhere are left out.
    """
    by_start: dict[str, list[Pair]] = {}
    for pair in pairs:
        by_start.setdefault(pair.positive[:40], []).append(pair)
    examples = []
    for text in texts:
        for piece in _pieces(text, length):
            found = [
                pair
                for start, group in by_start.items()
                if start in piece
                for pair in group
                if pair.positive[:_PROBE] in piece
            ]
            negatives: dict[str, tuple[str, ...]] = {}
            for pair in found:
                negatives[pair.query] = negatives.get(pair.query, ()) + pair.negatives
            queries = tuple(Query(query, 0, of) for query, of in negatives.items())
            kept = _without_headings(piece, list(negatives))
            if kept.strip():
                examples.append(Example(kept, queries, ((0, len(kept)),), source))
    return examples


def _without_headings(text: str, queries: Sequence[str]) -> str:
    """Take out the headings that queries were made of: `# so`, or so, underlined."""
    headings = {query.rpartition(": ")[2].strip().casefold() for query in queries} - {""}
    lines = text.split("\n")
    kept = []
    for line, below in zip(lines, [*lines[1:], ""], strict=True):
        marked = line.startswith("#") or _UNDERLINE.fullmatch(below) is not None
        if not (marked and line.strip("# \t").casefold() in headings):
            kept.append(line)
    return "\n".join(kept)


def _pieces(text: str, length: int) -> Iterator[str]:
    """Cut into pieces of even length at line ends, or at spaces where those are too far apart."""
    count = max(1, round(len(text) / length))
    target, start = len(text) / count, 0
    for number in range(1, count + 1):
        end = len(text)
        if number < count:
            wanted = int(number * target)
            space = _SPACE.search(text, wanted)
            line = text.find("\n", wanted) + 1 or len(text)
            end = line
            if space is not None and line - wanted > _FAR * length:
                end = space.end()
        if text[start:end].strip():
            yield text[start:end]
        start = end


def _records(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    for place, line, record in read_json_lines(path, error=TrainingDataError):
        if not isinstance(record, dict):
            raise TrainingDataError(f"{place}: {line!r:.80} is no JSON object")
        yield place, record
