"""The names of methods, and what they mean."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Literal, get_args

from lmk_rag.errors import ConfigError

Kind = Literal[
    "cut",
    "chunk-mean",
    "chunk-max",
    "bm25",
    "document",
    "landmarks",
    "mixed",
    "retriever",
    "words",
    "hybrid",
    "fusion",
]
BASE_KINDS = ("cut", "chunk-mean", "chunk-max")
OUR_KINDS = ("document", "landmarks", "mixed", "retriever", "words", "hybrid")
WORD_KINDS = ("bm25", "words")

DEFAULT_METHODS = (
    "bm25,cut@512,document,landmarks,mixed,retriever,hybrid,"
    "chunk-mean@256,chunk-max@256,chunk-max@256+bm25,chunk-mean@128,chunk-max@128,"
    "chunk-mean@256/32,chunk-max@256/32,chunk-mean@128/16,chunk-max@128/16"
)
HELP = (
    "cut@N: the base model reads N tokens; chunk-mean@N, chunk-max@N, @N/O: its pieces of N tokens "
    "(overlapping by O), each read alone; bm25; ours: document, landmarks (the best one for the "
    "query's vector), mixed (the mean of both scores), retriever, words (BM25 as hybrid counts "
    "it), hybrid; A+B: both fused, with bm25 or words as hybrid does, else by ranks"
)

_SIZED = re.compile(r"(cut|chunk-mean|chunk-max)@(\d+)(?:/(\d+))?")


@dataclass(frozen=True)
class Method:
    """A way to rank documents.

    Attributes:
        name: as given and as shown, for instance "chunk-max@256/32" or "bm25".
        kind: what it does.
        size: tokens read (`cut`: special tokens included, as models count) or tokens per piece;
            0 for other kinds.
        overlap: tokens a piece repeats from the one before.
        parts: the two methods of a fusion.
    """

    name: str
    kind: Kind
    size: int = 0
    overlap: int = 0
    parts: tuple[Method, ...] = ()

    @property
    def needs_base(self) -> bool:
        """Whether the base model is run."""
        return self.kind in BASE_KINDS or any(part.needs_base for part in self.parts)

    @property
    def needs_ours(self) -> bool:
        """Whether our encoder is run."""
        return self.kind in OUR_KINDS or any(part.needs_ours for part in self.parts)

    @property
    def needs_bm25(self) -> bool:
        """Whether words are counted."""
        return self.kind == "bm25" or any(part.needs_bm25 for part in self.parts)

    @property
    def fuses_scores(self) -> bool:
        """Whether two methods are fused as hybrid search does: words with scores of every text."""
        kinds = [part.kind for part in self.parts]
        complete = not {"retriever", "hybrid", "fusion"} & set(kinds)
        return complete and sum(kind in WORD_KINDS for kind in kinds) == 1


def parse_methods(text: str) -> list[Method]:
    """Read names between commas; one that comes again is taken once.

    Raises:
        ConfigError: an unknown name, or none at all.
    """
    names = [name.strip() for name in text.split(",") if name.strip()]
    if not names:
        raise ConfigError(f"no methods were named; expected some of {DEFAULT_METHODS}")
    return [_parse(name) for name in dict.fromkeys(names)]


def _parse(name: str) -> Method:
    if "+" in name:
        parts = [_parse(part) for part in name.split("+")]
        if len(parts) != 2:
            raise ConfigError(f"{name!r} fuses {len(parts)} methods; expected two")
        return Method(name, "fusion", parts=tuple(parts))
    sized = _SIZED.fullmatch(name)
    if sized is None:
        if name in get_args(Kind) and name not in (*BASE_KINDS, "fusion"):
            return replace(Method(name, "bm25"), kind=name)  # type: ignore[arg-type]  # it is one
        raise ConfigError(f"there is no method {name!r}; {HELP}")
    kind, size, overlap = sized[1], int(sized[2]), int(sized[3] or 0)
    if kind == "cut" and sized[3] is not None:
        raise ConfigError(f"{name!r}: a cut text has no overlap; write cut@{size}")
    if size < 3 or overlap >= size:
        raise ConfigError(f"{name!r}: expected a size of at least 3 and an overlap below it")
    return Method(name, kind, size, overlap)  # type: ignore[arg-type]  # matched by the pattern
