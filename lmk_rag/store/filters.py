"""Filters on metadata: small values, translated exactly or refused.

A key names a metadata entry; dots reach into nested objects ("author.name"), "authors[].name"
into every object of a list, "authors[0].name" into one; a key that itself holds a dot or bracket
is written in quotes ('"a.b"'). Where the entry is a list, a condition holds if it holds for any
element. A missing entry fulfills no condition but `Not(...)`.

Values are converted by the rule for metadata, so that what was stored is found: dates compare as
their ISO text, NumPy scalars as Python's. 1 equals 1.0; True is no number.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import date, datetime

import numpy as np
from qdrant_client import models

from lmk_rag.errors import InputError, UnsupportedFilterError
from lmk_rag.store.metadata import clean_value, surrogate_at

METADATA = "metadata"

Scalar = str | int | float | bool | date | None

_PART = re.compile(r'(?:"([^"]+)"|([^".\[\]]+))((?:\[\d*\])*)(?:\.(?=.)|(?=$))')
_PLAIN = re.compile(r"[A-Za-z0-9_-]+")
_EXACT = 2**53  # from here on not every integer is a float64


@dataclass(frozen=True)
class Eq:
    """The entry equals a value; `None` means it is null."""

    key: str
    value: Scalar


@dataclass(frozen=True)
class In:
    """The entry equals one of the values (none given: nothing matches)."""

    key: str
    values: tuple[Scalar, ...]

    def __init__(self, key: str, values: Iterable[Scalar]) -> None:
        if isinstance(values, str) or not isinstance(values, Iterable):
            raise UnsupportedFilterError(
                f"In({key!r:.80}) has the values {values!r:.80}; expected a list of values"
            )
        object.__setattr__(self, "key", key)
        object.__setattr__(self, "values", tuple(values))


@dataclass(frozen=True)
class Range:
    """The entry is a number, or a date as ISO text, within bounds.

    A date without a time means its midnight; one without a time zone is taken as UTC.
    """

    key: str
    gt: float | date | None = None
    gte: float | date | None = None
    lt: float | date | None = None
    lte: float | date | None = None


@dataclass(frozen=True)
class Exists:
    """The entry is there and is neither null nor an empty list."""

    key: str


@dataclass(frozen=True, init=False)
class And:
    """All filters hold; with none given, everything does."""

    filters: tuple[Filter, ...]

    def __init__(self, *filters: Filter) -> None:
        object.__setattr__(self, "filters", filters)


@dataclass(frozen=True, init=False)
class Or:
    """At least one filter holds; with none given, nothing does."""

    filters: tuple[Filter, ...]

    def __init__(self, *filters: Filter) -> None:
        object.__setattr__(self, "filters", filters)


@dataclass(frozen=True)
class Not:
    """The filter does not hold."""

    filter: Filter


Filter = Eq | In | Range | Exists | And | Or | Not


@dataclass(frozen=True)
class FieldIs:
    """A condition on one of our own payload fields; not for users.

    Attributes:
        name: the field.
        values: one of these.
        also: a filter on metadata that must hold too.
    """

    name: str
    values: tuple[str | int, ...]
    also: Filter | None = None


def translate(where: Filter | FieldIs) -> models.Filter:
    """Turn a filter into Qdrant's.

    Raises:
        UnsupportedFilterError: not one of the classes above, or a value Qdrant can't compare
            exactly. It is never left out.
    """
    condition = _condition(where)
    return condition if isinstance(condition, models.Filter) else models.Filter(must=[condition])


def _condition(where: object) -> models.Condition:
    if isinstance(where, FieldIs):
        also = [] if where.also is None else [_condition(where.also)]
        return models.Filter(must=[_any_of(where.name, where.values), *also])
    if isinstance(where, And):
        return models.Filter(must=[_condition(part) for part in where.filters])
    if isinstance(where, Or):
        if not where.filters:
            return _nothing()
        return models.Filter(should=[_condition(part) for part in where.filters])
    if isinstance(where, Not):
        return models.Filter(must_not=[_condition(where.filter)])
    if isinstance(where, Exists):
        field = models.PayloadField(key=metadata_path(where.key))
        return models.Filter(must_not=[models.IsEmptyCondition(is_empty=field)])
    if isinstance(where, Eq):
        return _equals(metadata_path(where.key), where.value)
    if isinstance(where, In):
        if not where.values:
            return _nothing()
        key = metadata_path(where.key)
        values = [_value(key, value) for value in where.values]
        texts = [value for value in values if isinstance(value, str)]
        others = [_equals(key, value) for value in values if not isinstance(value, str)]
        return models.Filter(should=[_any_of(key, texts), *others] if texts else others)
    if isinstance(where, Range):
        return _range(where)
    raise UnsupportedFilterError(
        f"{where!r:.80} is no filter; expected Eq, In, Range, Exists, And, Or or Not"
    )


def _equals(key: str, value: object) -> models.Condition:
    value = _value(key, value)
    if value is None:
        return models.IsNullCondition(is_null=models.PayloadField(key=key))
    if isinstance(value, str | bool) or (isinstance(value, int) and abs(value) >= _EXACT):
        return models.FieldCondition(key=key, match=models.MatchValue(value=value))
    # As a range: Qdrant matches integers only by value, so 1 and 1.0 would differ.
    return models.FieldCondition(key=key, range=models.Range(gte=value, lte=value))


def _value(key: str, value: object) -> str | int | float | bool | None:
    try:
        clean = clean_value(value, "it")
    except InputError as error:
        raise UnsupportedFilterError(f"can't compare {key!r} with {value!r:.80}: {error}") from None
    if clean is None or isinstance(clean, str | int | float):
        return clean
    raise UnsupportedFilterError(
        f"can't compare {key!r} with {value!r:.80} ({type(value).__name__}); expected a string, "
        "number, bool, date or None"
    )


def _any_of(key: str, values: Iterable[str | int]) -> models.Condition:
    return models.FieldCondition(key=key, match=models.MatchAny(any=list(values)))  # type: ignore[arg-type]


def _nothing() -> models.Condition:
    return models.Filter(must=[models.HasIdCondition(has_id=[])])


def _range(where: Range) -> models.Condition:
    key = metadata_path(where.key)
    given = {name: getattr(where, name) for name in ("gt", "gte", "lt", "lte")}
    bounds = {
        name: bound.item() if isinstance(bound, np.number) else bound
        for name, bound in given.items()
        if bound is not None
    }
    if not bounds:
        raise UnsupportedFilterError(f"Range({where.key!r}) has no bound; use Exists instead")
    if all(isinstance(bound, date) for bound in bounds.values()):
        moments = {
            name: bound
            if isinstance(bound, datetime)
            else datetime(bound.year, bound.month, bound.day)  # noqa: DTZ001
            for name, bound in bounds.items()
        }
        return models.FieldCondition(key=key, range=models.DatetimeRange(**moments))
    if all(_is_bound(bound) for bound in bounds.values()):
        return models.FieldCondition(key=key, range=models.Range(**bounds))
    raise UnsupportedFilterError(
        f"Range({where.key!r}) has bounds {bounds!r:.80}; expected numbers only (finite, integers "
        "below 2**53) or dates only"
    )


def _is_bound(value: object) -> bool:
    return (
        isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < _EXACT
    ) or (isinstance(value, float) and np.isfinite(value).item())


def metadata_path(key: object) -> str:
    """Return Qdrant's path to a metadata entry, with all but plain parts in quotes."""
    if not isinstance(key, str) or not key or surrogate_at(key) is not None:
        raise UnsupportedFilterError(f"a filter key is {key!r:.80}; expected a non-empty string")
    path, at = METADATA, 0
    while at < len(key):
        part = _PART.match(key, at)
        if part is None:
            raise UnsupportedFilterError(
                f"the filter key {key!r:.80} can't be read from character {at} on; write a part "
                "that holds dots, brackets or the like in double quotes"
            )
        quoted, plain, brackets = part.groups()
        name = quoted or plain
        path += f".{quoted_part(name)}{brackets}"
        at = part.end()
    return path


def quoted_part(name: str) -> str:
    """Return one part of a path, in quotes if it is not plain."""
    return name if _PLAIN.fullmatch(name) else f'"{name}"'
