"""Folders in BEIR form: corpus, queries, judgments and, where given, answer spans."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from lmk_rag.config import check_int
from lmk_rag.errors import InputError
from lmk_rag.json_lines import read_json_lines, read_lines
from lmk_rag.types import Document

_QRELS = ("query-id", "corpus-id", "score")
_ANSWERS = ("query-id", "corpus-id", "start", "end")
_LANGUAGE = 2  # a folder with a name this short is one language of the set above it


@dataclass(frozen=True)
class Answer:
    """Where a query's answer stands: `document.text[start:end]`."""

    query_id: str
    document_id: str
    start: int
    end: int


@dataclass(frozen=True)
class RetrievalSet:
    """A test collection.

    Attributes:
        name: for tables.
        documents: ids are unique; a title, where there is one, is the first line of the text.
        queries: text by id, in order; those with a relevant document only.
        qrels: score by document id, by query id; over 0 is relevant.
        answers: spans in the documents' texts; empty where the folder gives none.
        unjudged: queries that were left out because no document is relevant to them.
        whole: documents and queries before `limit`, or None.
    """

    name: str
    documents: tuple[Document, ...]
    queries: Mapping[str, str]
    qrels: Mapping[str, Mapping[str, int]]
    answers: tuple[Answer, ...] = ()
    unjudged: int = 0
    whole: tuple[int, int] | None = None

    @property
    def texts(self) -> list[str]:
        """The documents' texts, in order."""
        return [document.text for document in self.documents]

    @property
    def label(self) -> str:
        """The name, and how much of the set it is where that is not all."""
        if self.whole is None:
            return self.name
        return (
            f"{self.name} ({len(self.documents)} of {self.whole[0]} documents, "
            f"{len(self.queries)} of {self.whole[1]} queries)"
        )

    @cached_property
    def digest(self) -> str:
        """Hex digits that change with any text, query or judgment."""
        parts = (
            [(document.id, document.text) for document in self.documents],
            list(self.queries.items()),
            [(query_id, sorted(of.items())) for query_id, of in self.qrels.items()],
        )
        return hashlib.sha256(json.dumps(parts).encode("ascii")).hexdigest()


def load_set(folder: str | Path, *, name: str | None = None) -> RetrievalSet:
    """Read a folder with corpus.jsonl, queries.jsonl (either may be .gz) and qrels.

    Judgments are read from qrels.tsv or qrels/test.tsv, answer spans from answers.tsv. These name
    characters of a document's text without its title; here they are moved behind the title.

    Args:
        folder: the folder.
        name: for tables; None: the folder's name, after its parent's if it is a language code.

    Raises:
        InputError: a file is missing or malformed; names file and line.
    """
    folder = Path(folder).expanduser()
    if not folder.is_dir():
        raise InputError(f"there is no folder {folder}; name one with corpus.jsonl(.gz)")
    documents: list[Document] = []
    shifts: dict[str, int] = {}
    corpus_path = _only(folder, "corpus.jsonl", "corpus.jsonl.gz")
    for place, record in _records(corpus_path):
        title, text = record.get("title") or "", record["text"]
        if not isinstance(title, str):
            raise InputError(f"{place}: the title is {title!r:.80}; expected a string")
        if record["_id"] in shifts:
            raise InputError(f"{place}: the id {record['_id']!r} came before; ids must be unique")
        shifts[record["_id"]] = len(title) + 1 if title else 0
        documents.append(Document(record["_id"], f"{title}\n{text}" if title else text))
    if not documents:
        raise InputError(f"{corpus_path} is empty; expected a JSON object per line")
    queries: dict[str, str] = {}
    for place, record in _records(_only(folder, "queries.jsonl", "queries.jsonl.gz")):
        if record["_id"] in queries:
            raise InputError(f"{place}: the id {record['_id']!r} came before; ids must be unique")
        queries[record["_id"]] = record["text"]
    qrels: dict[str, dict[str, int]] = {}
    path = _only(folder, "qrels.tsv", "qrels/test.tsv")
    for place, (query_id, document_id, score) in _table(path, _QRELS):
        _check_ids(place, query_id, document_id, queries, shifts)
        judged, grade = qrels.setdefault(query_id, {}), _number(place, "score", score)
        if document_id in judged:
            raise InputError(f"{place}: {query_id!r} and {document_id!r} were judged before")
        judged[document_id] = grade
    answers = []
    if (folder / "answers.tsv").exists():
        for place, (query_id, document_id, start, end) in _table(folder / "answers.tsv", _ANSWERS):
            _check_ids(place, query_id, document_id, queries, shifts)
            shift = shifts[document_id]
            first, last = _number(place, "start", start), _number(place, "end", end)
            answers.append(Answer(query_id, document_id, first + shift, last + shift))
    _check_answers(folder / "answers.tsv", answers, documents)
    return _judged(
        RetrievalSet(name or _name(folder), tuple(documents), queries, qrels, tuple(answers))
    )


def limit(
    data: RetrievalSet, *, documents: int | None = None, queries: int | None = None
) -> RetrievalSet:
    """Return the first documents of a set, and the first queries with a relevant one among them.

    Raises:
        ConfigError: a number is less than 1.
        InputError: no query has a relevant document among those left.
    """
    for name, value in (("documents", documents), ("queries", queries)):
        if value is not None:
            check_int(name, value, minimum=1)
    kept = data.documents[:documents]
    ids = {document.id for document in kept}
    qrels = {q: {d: s for d, s in of.items() if d in ids} for q, of in data.qrels.items()}
    relevant = [q for q in data.queries if any(score > 0 for score in qrels[q].values())]
    chosen = relevant[:queries]
    if len(kept) == len(data.documents) and len(chosen) == len(data.queries):
        return data
    if not chosen:
        raise InputError(
            f"{data.name}: no query has a relevant document among the first {len(kept)}; take more"
        )
    return replace(
        data,
        documents=kept,
        queries={q: data.queries[q] for q in chosen},
        qrels={q: qrels[q] for q in chosen},
        answers=tuple(
            a for a in data.answers if a.query_id in set(chosen) and a.document_id in ids
        ),
        whole=data.whole or (len(data.documents), len(data.queries)),
    )


def _judged(data: RetrievalSet) -> RetrievalSet:
    """Leave out queries without a relevant document: no method can be right or wrong there."""
    judged = {q for q, of in data.qrels.items() if any(score > 0 for score in of.values())}
    if not judged:
        raise InputError(f"{data.name}: the qrels hold no relevant document (score over 0)")
    return replace(
        data,
        queries={q: text for q, text in data.queries.items() if q in judged},
        qrels={q: of for q, of in data.qrels.items() if q in judged},
        answers=tuple(answer for answer in data.answers if answer.query_id in judged),
        unjudged=len(data.queries) - len(judged),
    )


def _name(folder: Path) -> str:
    folder = folder.resolve()
    short = len(folder.name) <= _LANGUAGE
    return f"{folder.parent.name}/{folder.name}" if short else folder.name


def _only(folder: Path, *names: str) -> Path:
    found = [folder / name for name in names if (folder / name).is_file()]
    if len(found) == 1:
        return found[0]
    if found:
        raise InputError(f"{folder} holds both {' and '.join(names)}; keep the one that counts")
    raise InputError(f"{folder} holds neither {' nor '.join(names)}; a BEIR folder needs one")


def _records(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    for place, line, record in read_json_lines(path):
        for key in ("_id", "text"):
            if not isinstance(record, dict) or not isinstance(record.get(key), str):
                raise InputError(
                    f'{place}: found {line!r:.80}; expected an object with strings "_id" and "text"'
                )
        yield place, record


def _table(path: Path, columns: tuple[str, ...]) -> Iterator[tuple[str, list[str]]]:
    header = False
    for place, line in read_lines(path):
        cells = line.split("\t")
        if not header:
            header = True
            if cells != list(columns):
                raise InputError(
                    f"{place}: found {line!r:.80}; expected the header {', '.join(columns)} "
                    "between tabs"
                )
        elif len(cells) != len(columns):
            raise InputError(
                f"{place}: found {line!r:.80}; expected {len(columns)} cells between tabs: "
                f"{', '.join(columns)}"
            )
        else:
            yield place, cells
    if not header:
        raise InputError(f"{path} is empty; expected the header {', '.join(columns)}")


def _number(place: str, column: str, cell: str) -> int:
    try:
        return int(cell)
    except ValueError:
        raise InputError(f"{place}: {column} is {cell!r}; expected a whole number") from None


def _check_ids(
    place: str,
    query_id: str,
    document_id: str,
    queries: Mapping[str, str],
    documents: Mapping[str, int],
) -> None:
    for kind, id_, known in (("query", query_id, queries), ("document", document_id, documents)):
        if id_ not in known:
            raise InputError(f"{place}: there is no {kind} {id_!r}; add it or drop the line")


def _check_answers(path: Path, answers: list[Answer], documents: list[Document]) -> None:
    lengths = {document.id: len(document.text) for document in documents}
    for answer in answers:
        if not 0 <= answer.start < answer.end <= lengths[answer.document_id]:
            raise InputError(
                f"{path}: the answer to {answer.query_id!r} is [{answer.start}, {answer.end}) of "
                f"{answer.document_id!r}, which has {lengths[answer.document_id]} characters with "
                "its title; expected a span of the text"
            )
