"""Filters on metadata: small values, translated exactly or refused.

A key names a metadata entry; dots reach into nested objects ("author.name"), and a key that
itself holds a dot is written in quotes ('"a.b"'). Where the entry is a list, a condition holds
if it holds for any element. A missing entry fulfills no condition but `Not(...)`.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date, datetime
from typing import Any

from qdrant_client import models

from lmk_rag.errors import UnsupportedFilterError

METADATA = "metadata"

Scalar = str | int | float | bool | None


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

    def __init__(self, key: str, values: Any) -> None:
        object.__setattr__(self, "key", key)
        object.__setattr__(self, "values", tuple(values))


@dataclass(frozen=True)
class Range:
    """The entry is a number, or a date as ISO text, within bounds."""

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
    """A condition on one of our own payload fields; not for users."""

    name: str
    values: tuple[str | int, ...]


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
        return _any_of(where.name, where.values)
    if isinstance(where, And):
        return models.Filter(must=[_condition(part) for part in where.filters])
    if isinstance(where, Or):
        if not where.filters:
            return _nothing()
        return models.Filter(should=[_condition(part) for part in where.filters])
    if isinstance(where, Not):
        return models.Filter(must_not=[_condition(where.filter)])
    if isinstance(where, Exists):
        key = _path(where.key)
        return models.Filter(
            must_not=[
                models.IsEmptyCondition(is_empty=models.PayloadField(key=key)),
                models.IsNullCondition(is_null=models.PayloadField(key=key)),
            ]
        )
    if isinstance(where, Eq):
        return _equals(_path(where.key), where.value)
    if isinstance(where, In):
        if not where.values:
            return _nothing()
        key = _path(where.key)
        return models.Filter(should=[_equals(key, value) for value in where.values])
    if isinstance(where, Range):
        return _range(where)
    raise UnsupportedFilterError(
        f"{where!r:.80} is no filter; expected Eq, In, Range, Exists, And, Or or Not"
    )


def _equals(key: str, value: object) -> models.Condition:
    if value is None:
        return models.IsNullCondition(is_null=models.PayloadField(key=key))
    if isinstance(value, bool):
        # Local mode compares as Python does, where False == 0; a number is never a bool here.
        is_bool = models.FieldCondition(key=key, match=models.MatchValue(value=value))
        is_number = models.FieldCondition(key=key, range=models.Range(gte=-1, lte=1))
        return models.Filter(must=[is_bool], must_not=[is_number])
    if isinstance(value, str) or (isinstance(value, int) and abs(value) > 2**53):
        return models.FieldCondition(key=key, match=models.MatchValue(value=value))
    if isinstance(value, int | float):
        # As a range: Qdrant matches integers only by value, so 1 and 1.0 would differ.
        return models.FieldCondition(key=key, range=models.Range(gte=value, lte=value))
    raise UnsupportedFilterError(
        f"can't compare {key!r} with {value!r:.80} ({type(value).__name__}); expected a string, "
        "number, bool or None"
    )


def _any_of(key: str, values: tuple[str | int, ...]) -> models.Condition:
    return models.FieldCondition(key=key, match=models.MatchAny(any=list(values)))  # type: ignore[arg-type]


def _nothing() -> models.Condition:
    return models.Filter(must=[models.HasIdCondition(has_id=[])])


def _range(where: Range) -> models.Condition:
    bounds = {
        name: bound
        for name in ("gt", "gte", "lt", "lte")
        if (bound := getattr(where, name)) is not None
    }
    if not bounds:
        raise UnsupportedFilterError(f"Range({where.key!r}) has no bound; use Exists instead")
    key = _path(where.key)
    if all(isinstance(bound, date) for bound in bounds.values()):
        moments = {
            name: bound
            if isinstance(bound, datetime)
            else datetime(bound.year, bound.month, bound.day)  # noqa: DTZ001
            for name, bound in bounds.items()
        }
        return models.FieldCondition(key=key, range=models.DatetimeRange(**moments))
    if all(isinstance(b, int | float) and not isinstance(b, bool) for b in bounds.values()):
        return models.FieldCondition(key=key, range=models.Range(**bounds))
    raise UnsupportedFilterError(
        f"Range({where.key!r}) has bounds {bounds!r:.80}; expected numbers only or dates only"
    )


def _path(key: object) -> str:
    if not isinstance(key, str) or not key:
        raise UnsupportedFilterError(f"a filter key is {key!r:.80}; expected a non-empty string")
    return f"{METADATA}.{key}"
