"""Files to `Document`s: listing paths, decoding text, blanking markup, converting PDF and Office.

A file has one id, its resolved absolute POSIX path, however it is named and from wherever. Text
is never rewritten: offsets and line numbers of a `Document` are those of the file.
"""

from __future__ import annotations

import codecs
import importlib
import re
import stat
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from lmk_rag.errors import InputError, MissingExtraError, require_extra
from lmk_rag.html_text import blank_markup
from lmk_rag.listing import Target, is_under, list_files, reason_of
from lmk_rag.types import Document

_HTML = (".html", ".htm", ".xhtml")
_CONVERTED = (".pdf", ".docx", ".pptx", ".xlsx", ".epub")
_UTF16_MARKS = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)


class NotTextError(InputError):
    """The bytes are no text."""


@dataclass(frozen=True)
class FileProblem:
    """A file or folder that could not be read, as people should be told."""

    path: str
    reason: str


class FileSource:
    """Read paths as documents, a file at a time, in the order of their ids.

    Args:
        paths: files, folders, glob patterns, or "-" for standard input.
        encoding: how text files are decoded.
        stdin_id: the document id of standard input.
        exclude: a folder that is never read, such as the store.

    Attributes:
        problems: what could not be read; grows while `documents()` runs.
        missing: given paths and patterns that name nothing.
        not_text: binary files met in folders; grows while `documents()` runs.

    Raises:
        InputError: no such encoding, or one that is not for text.
    """

    def __init__(
        self,
        paths: Sequence[str],
        *,
        encoding: str = "utf-8",
        stdin_id: str = "stdin",
        exclude: Path | None = None,
    ) -> None:
        self._encoding = _checked_encoding(encoding)
        self._stdin_id = stdin_id if "-" in paths else None
        self._targets = [Target.of(path) for path in dict.fromkeys(paths) if path != "-"]
        listing = list_files(self._targets, exclude=exclude)
        self._named = listing.files
        self._unread = listing.unread
        self._found = set(listing.files)
        self.missing = listing.missing
        self.problems = [FileProblem(path, reason) for path, reason in listing.unread.items()]
        self.not_text = listing.not_text

    def __len__(self) -> int:
        """How many documents there are to read, standard input included."""
        return len(self._named) + (self._stdin_id is not None)

    def documents(self) -> Iterator[Document]:
        """Yield a document per readable file; what can't be read goes to `problems`."""
        if self._stdin_id is not None:
            data = sys.stdin.buffer.read()
            try:
                text = decode(data, self._encoding)
            except InputError as error:
                self.problems.append(FileProblem(self._stdin_id, str(error)))
            else:
                is_html = self._stdin_id.lower().endswith(_HTML)
                metadata = {"type": "html" if is_html else "text"}
                yield Document(self._stdin_id, blank_markup(text) if is_html else text, metadata)
        for document_id, named in sorted(self._named.items()):
            document = self._try_reading(document_id, named=named)
            if document is not None:
                yield document

    def is_gone(self, document_id: str) -> bool:
        """Whether a stored document lies where this source looked and has no text file any more.

        False for everything elsewhere, and for what is there but could not be read.
        """
        if document_id in self._found or document_id == self._stdin_id:
            return False
        if any(is_under(document_id, path) for path in self._unread):
            return False
        return any(target.covers(document_id) for target in self._targets)

    def covered_by(self, given: str, document_id: str) -> bool:
        """Whether the given path or pattern speaks about the document id."""
        return any(t.covers(document_id) for t in self._targets if t.given == given)

    def _try_reading(self, document_id: str, *, named: bool) -> Document | None:
        try:
            return self._read(document_id)
        except NotTextError as error:
            if named:
                self.problems.append(FileProblem(document_id, str(error)))
            else:
                self._found.discard(document_id)
                self.not_text += 1
        except OSError as error:
            self.problems.append(FileProblem(document_id, reason_of(error)))
        except (InputError, MissingExtraError) as error:
            self.problems.append(FileProblem(document_id, str(error)))
        return None

    def _read(self, document_id: str) -> Document:
        path = Path(document_id)
        if not stat.S_ISREG(path.stat().st_mode):
            raise NotTextError("not a regular file; pipe it in and read it as '-'")
        kind, suffix = "text", path.suffix.lower()
        if suffix in _CONVERTED:
            kind, text = "markitdown", self._convert(path)
        else:
            text = decode(path.read_bytes(), self._encoding)
            if suffix in _HTML:
                kind, text = "html", blank_markup(text)
        # Nothing that depends on where the command ran: it would make every file a changed one.
        return Document(document_id, text, {"path": document_id, "name": path.name, "type": kind})

    @cached_property
    def _converter(self) -> Any:
        try:
            module = require_extra("markitdown", "files", "reading PDF and Office files")
        except MissingExtraError as error:
            return error  # found out once, told for every file
        # Its other converters would take a damaged file for plain text.
        converter = module.MarkItDown(enable_builtins=False, enable_plugins=False)
        converters = importlib.import_module("markitdown.converters")
        for kind in ("Pdf", "Docx", "Pptx", "Xlsx", "Epub"):
            converter.register_converter(getattr(converters, f"{kind}Converter")())
        return converter

    def _convert(self, path: Path) -> str:
        if isinstance(self._converter, MissingExtraError):
            raise self._converter
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of parsers about oddities they coped with
                return str(self._converter.convert_local(path).markdown)
        except OSError:
            raise
        except Exception as error:  # converters raise whatever their parsers raise
            told = [line for line in str(error).splitlines() if line.strip()]
            if "MissingDependencyException" in str(error):
                raise MissingExtraError(
                    f"reading {path.suffix} files needs more of `markitdown`; install it with: "
                    "pip install 'lmk-rag[files]'"
                ) from error
            what = told[-1].strip(" -") if told else type(error).__name__
            raise InputError(f"markitdown could not convert it: {what:.200}") from error


def _checked_encoding(encoding: str) -> str:
    try:
        with suppress(UnicodeError):  # as in UTF-16, where one byte is no text
            b"a".decode(encoding)  # unlike `lookup`, this refuses what is no text encoding
        return codecs.lookup(encoding).name
    except LookupError as error:
        raise InputError(f"encoding {encoding!r} can't be used: {error}") from None


def decode(data: bytes, encoding: str) -> str:
    r"""Decode a file as it is: "\r\n" and a byte order mark stay, so offsets are the file's.

    Raises:
        NotTextError: the bytes are no text in any single-byte or UTF-8 encoding.
        InputError: text in another encoding; names the place and the remedy.
    """
    if not re.match(r"utf[-_]?(16|32)", encoding):
        if data.startswith(_UTF16_MARKS):
            raise InputError("looks like UTF-16; pass --encoding utf-16")
        if b"\0" in data[:8192]:
            raise NotTextError("not a text file (it holds NUL bytes)")
    try:
        return data.decode(encoding)
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise InputError(
            f"not valid {encoding} (byte 0x{data[error.start]:02x} on line {line}); pass its "
            "--encoding, for instance latin-1"
        ) from None
