"""Every error lmk-rag raises on purpose, as one tree:

    LMKError
    ├── ConfigError            a setting is out of range or contradicts another
    ├── InputError             a text, id or metadata value that can't be used as given
    │   ├── TextTooLongError   a text over the window, with on_overflow="error"
    │   └── TrainingDataError  training data of another form than expected
    ├── CheckpointError        a model folder that can't be read
    │   └── UnsafeCheckpointError  one that would need pickle or remote code
    ├── ClosedError            a closed encoder or store was used
    ├── NonFiniteError         the model gave NaN or infinity
    ├── StoreError             the vector store refused
    │   ├── StoreLockedError   another process or client holds the folder
    │   ├── CollectionMismatchError  the collection was made with other settings
    │   └── UnsupportedFilterError   a filter the store can't apply exactly
    └── MissingExtraError      an optional package is not installed

Each also derives from the builtin that callers would expect to catch, ValueError for instance.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from types import ModuleType


class LMKError(Exception):
    """Parent of all errors raised by lmk-rag."""


class ConfigError(LMKError, ValueError):
    """A setting is out of range or contradicts another."""


class InputError(LMKError, ValueError):
    """A text, id or metadata value can't be used as given."""


class TextTooLongError(InputError):
    """A text is longer than the window and `on_overflow="error"` was asked for."""


class TrainingDataError(InputError):
    """Training data is of another form than expected; names the file and the line."""


class CheckpointError(LMKError, ValueError):
    """A model folder or hub id can't be read as an encoder."""


class UnsafeCheckpointError(CheckpointError):
    """Loading would need pickle or code from the model folder, and neither was allowed."""


class ClosedError(LMKError, RuntimeError):
    """A closed encoder or store was used."""


class NonFiniteError(LMKError, ArithmeticError):
    """The model gave NaN or infinity for a text."""


class StoreError(LMKError):
    """The vector store refused an operation."""


class StoreLockedError(StoreError, RuntimeError):
    """Another process or client holds the local store folder."""


class CollectionMismatchError(StoreError, ValueError):
    """The collection was made with another encoder, other settings or by another tool."""


class UnsupportedFilterError(StoreError, NotImplementedError):
    """A filter that the store can't apply exactly; it is never dropped silently."""


class MissingExtraError(LMKError, ImportError):
    """An optional package is needed and not installed."""


def refuse_options(name: str, options: Mapping[str, object]) -> None:
    """Raise TypeError if there are keyword options, which a framework's signature lets through."""
    if options:
        raise TypeError(f"{name} does not know the options {', '.join(sorted(options))}")


def require_extra(module: str, extra: str, purpose: str) -> ModuleType:
    """Import `module` or raise MissingExtraError with the one wording used everywhere."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise  # the package is there and itself lacks something: don't hide that
        raise MissingExtraError(
            f"{purpose} needs `{module.split('.')[0]}`; install it with: "
            f"pip install 'lmk-rag[{extra}]'"
        ) from error
