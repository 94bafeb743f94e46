"""The rule for metadata: what is stored as it is, what is converted, what is refused.

Stored as they are: strings, booleans, integers of 64 bits, finite floats, None, lists, and dicts
with string keys. Converted: tuples to lists, NumPy scalars to Python's, dates and datetimes to
ISO 8601 text, UUIDs, paths and string or integer enums to text or number. Everything else is
refused by name, before anything is written: it would come back as something else.
"""

from __future__ import annotations

import enum
import json
import math
import uuid
from collections.abc import Mapping
from datetime import date
from pathlib import PurePath

import numpy as np

from lmk_rag.errors import InputError

Json = dict[str, object]

_MAX_DEPTH = 32  # servers stop reading at 128; a dict that holds itself stops here


def clean_metadata(metadata: object) -> Json:
    """Return a deep, JSON-ready copy; the caller's object is not touched.

    Raises:
        InputError: names the key and what was found there.
    """
    if not isinstance(metadata, Mapping):
        raise InputError(f"metadata is {type(metadata).__name__}; expected a dict")
    return _mapping(metadata, "metadata", _MAX_DEPTH)


def canonical_json(value: object) -> str:
    """Write JSON so that equal values give equal text, for revisions."""
    return json.dumps(value, sort_keys=True, ensure_ascii=True, separators=(",", ":"))


def surrogate_at(text: str) -> int | None:
    """Return where the first lone surrogate stands, which no store can hold as UTF-8."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        return error.start
    return None


def clean_value(value: object, path: str) -> object:
    """Return one value by the rule above; `path` names it in errors."""
    return _value(value, path, _MAX_DEPTH)


def _mapping(value: Mapping[object, object], path: str, depth: int) -> Json:
    clean: Json = {}
    for key, entry in value.items():
        if not isinstance(key, str):
            raise InputError(f"{path} has the key {key!r:.40}; expected only strings as keys")
        if not key or surrogate_at(key) is not None:
            raise InputError(f"{path} has the key {key!r:.40}, which can't be stored")
        clean[str.__str__(key)] = _value(entry, f"{path}[{key!r:.40}]", depth)
    return clean


def _value(value: object, path: str, depth: int) -> object:
    if isinstance(value, np.datetime64):
        value = _moment(value, path)
    if isinstance(value, np.generic) and not isinstance(value, np.timedelta64 | np.void):
        value = value.item()
    if isinstance(value, enum.Enum):
        value = value.value
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, uuid.UUID | PurePath):
        value = str(value)
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        at = surrogate_at(value)
        if at is not None:
            raise InputError(f"{path} holds a lone surrogate at character {at}")
        return str.__str__(value)
    if isinstance(value, int):
        if not -(2**63) <= value < 2**63:
            raise InputError(f"{path} is {value}, which does not fit 64 bits")
        return int(value)
    if isinstance(value, float):
        if not math.isfinite(value):
            raise InputError(f"{path} is {value}; expected a finite number")
        return float(value)
    if isinstance(value, list | tuple | Mapping):
        if depth == 0:
            raise InputError(f"{path:.120} is nested more than {_MAX_DEPTH} levels deep")
        if isinstance(value, Mapping):
            return _mapping(value, path, depth - 1)
        return [_value(entry, f"{path}[{i}]", depth - 1) for i, entry in enumerate(value)]
    raise InputError(
        f"{path} is a {type(value).__name__}, which JSON can't hold; expected strings, numbers, "
        "booleans, None, lists, dicts, dates or paths"
    )


def _moment(value: np.datetime64, path: str) -> date:
    micro = value.astype("datetime64[us]")  # a finer unit would come out as a plain integer
    moment = (
        micro.item() if value.dtype.str.endswith(("[ns]", "[ps]", "[fs]", "[as]")) else value.item()
    )
    if not isinstance(moment, date) or micro != value:
        raise InputError(
            f"{path} is {value!s}; expected a date of years 1 to 9999, to the microsecond"
        )
    return moment
