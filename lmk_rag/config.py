"""`LandmarkConfig`: how a text is cut into landmarks and windows."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from lmk_rag.errors import ConfigError

DEFAULT_PREFIX = "default ("  # what a collection calls the default model begins so
DEFAULT_NAME = f"{DEFAULT_PREFIX}lmk-minilm-l6-v3)"
# The most passages of one document that a search shows, unless told otherwise. Two show more
# answers than one (benchmarks/evaluation/long.md); with more, hybrid and document mode, which rank
# passages by their documents, would fill five places with two documents.
PER_DOCUMENT = 2

Boundary = Literal["token", "word", "sentence"]
Overflow = Literal["window", "truncate", "error"]


@dataclass(frozen=True)
class LandmarkConfig:
    """How texts become landmarks.

    Attributes:
        granularity: k, the number of content tokens per landmark.
        boundary: where a stretch may end. `token`: after exactly k tokens (the paper's rule);
            `word`: at the last word boundary within k tokens; `sentence`: at the sentence or
            line end nearest to k within 1.5 k tokens, else as `word`.
        max_length: tokens in one window, special tokens, landmarks and prompt included.
            None: as many as the model takes.
        overlap: content tokens that a window repeats from the window before it, as context
            only; rounded down to whole stretches, and at most half a window.
        query_prompt, document_prompt: put before the text as tokens; they belong to no span.
            "" (the default) uses the prompt saved with the checkpoint, if any; None uses none.
        on_overflow: what to do with a text longer than one window: encode it in several
            (`window`), cut it and warn (`truncate`), or raise TextTooLongError (`error`).

    Raises:
        ConfigError: a value is out of range.
    """

    granularity: int = 16
    boundary: Boundary = "word"
    max_length: int | None = None
    overlap: int = 32
    query_prompt: str | None = ""
    document_prompt: str | None = ""
    on_overflow: Overflow = "window"

    def __post_init__(self) -> None:
        check_int("granularity", self.granularity, minimum=1)
        check_int("overlap", self.overlap, minimum=0)
        if self.max_length is not None:
            check_int("max_length", self.max_length, minimum=3)
        for name, value, allowed in (
            ("boundary", self.boundary, get_args(Boundary)),
            ("on_overflow", self.on_overflow, get_args(Overflow)),
        ):
            if value not in allowed:
                raise ConfigError(f"{name} is {value!r}; expected one of {', '.join(allowed)}")
        for name in ("query_prompt", "document_prompt"):
            value = getattr(self, name)
            if value is not None and not isinstance(value, str):
                raise ConfigError(f"{name} is {value!r}; expected a string or None")

    @property
    def longest_stretch(self) -> int:
        """The most content tokens one landmark can own: k, or 1.5 k with sentence boundaries."""
        return self.granularity * 3 // 2 if self.boundary == "sentence" else self.granularity

    def to_json(self) -> str:
        """Return the config as a JSON object with sorted keys."""
        return json.dumps(dataclasses.asdict(self), sort_keys=True, ensure_ascii=False)

    @classmethod
    def from_json(cls, text: str) -> LandmarkConfig:
        """Read what `to_json` wrote.

        Raises:
            ConfigError: not a JSON object, or with keys this version does not know.
        """
        try:
            values = json.loads(text)
        except json.JSONDecodeError as error:
            raise ConfigError(f"the landmark config is not JSON: {error}") from error
        return cls.from_dict(values)

    @classmethod
    def from_dict(cls, values: Any) -> LandmarkConfig:
        """Build a config from a plain dict, refusing unknown keys."""
        if not isinstance(values, dict):
            raise ConfigError(f"the landmark config is {values!r}; expected an object")
        known = {field.name for field in dataclasses.fields(cls)}
        unknown = sorted(set(values) - known)
        if unknown:
            raise ConfigError(
                f"the landmark config has unknown keys {unknown}; this version knows "
                f"{', '.join(sorted(known))}"
            )
        return cls(**values)

    def fingerprint(self) -> str:
        """Return 16 hex digits that change whenever a setting changes."""
        return hashlib.sha256(self.to_json().encode("utf-8")).hexdigest()[:16]


def as_config(value: object) -> object:
    """Return a mapping as a `LandmarkConfig`, anything else as it is.

    For pydantic, which left to itself drops keys that the dataclass does not have.

    Raises:
        ConfigError: unknown keys, or values out of range.
    """
    return LandmarkConfig.from_dict(dict(value)) if isinstance(value, Mapping) else value


def check_int(name: str, value: object, *, minimum: int) -> None:
    """Raise ConfigError unless `value` is a whole number of at least `minimum`."""
    if not isinstance(value, int) or isinstance(value, bool) or value < minimum:
        raise ConfigError(f"{name} is {value!r}; expected a whole number of at least {minimum}")
