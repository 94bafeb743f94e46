"""Which files a path, folder or glob pattern means. Lists only; opens no file."""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path

_SKIPPED_FOLDERS = frozenset({"__pycache__", "node_modules"})
_VENV_FILE = "pyvenv.cfg"  # what a virtual environment holds, whatever it is called
_BINARY = """
.7z .a .avi .bin .bmp .bz2 .class .db .dll .dmg .doc .dylib .eot .exe .flac .gif .gz .ico .iso .jar
.jpeg .jpg .lib .m4a .mkv .mov .mp3 .mp4 .mpeg .npy .npz .o .obj .odp .ods .odt .ogg .onnx .otf
.parquet .pkl .png .ppt .psd .pt .pth .pyc .pyd .pyo .rar .safetensors .so .sqlite .sqlite3 .tar
.tgz .tif .tiff .ttf .wasm .wav .webm .webp .whl .woff .woff2 .xls .xz .zip .zst
"""
_BINARY_SUFFIXES = frozenset(_BINARY.split())
_MAGIC = frozenset("*?[")


@dataclass
class Listing:
    """What paths mean.

    Attributes:
        files: document ids, and whether each was named itself rather than met in a folder.
        unread: files and folders that could not be listed or must not be read, with the reason.
        missing: given paths and patterns that name nothing.
        not_text: how many files were left out because their suffix says that they are binary.
    """

    files: dict[str, bool] = field(default_factory=dict)
    unread: dict[str, str] = field(default_factory=dict)
    missing: list[str] = field(default_factory=list)
    not_text: int = 0

    def add(self, path: Path, *, named: bool) -> None:
        """Note a file; of two entries for one file the named one counts."""
        name = path.as_posix()
        try:
            name.encode("utf-8")
        except UnicodeEncodeError:
            printable = os.fsencode(name).decode("utf-8", "replace")
            self.unread[printable] = "its name is not valid UTF-8"
            return
        self.files[name] = named or self.files.get(name, False)


@dataclass(frozen=True)
class Target:
    """One path as given on a command line.

    Attributes:
        given: as typed.
        base: the file or folder, resolved; of a pattern, the folder before its first wildcard.
        pattern: the components of the pattern below `base`; empty for a plain path.
    """

    given: str
    base: Path
    pattern: tuple[str, ...] = ()

    @classmethod
    def of(cls, given: str) -> Target:
        """Read a path; one that exists is never taken for a pattern."""
        path = Path(given).expanduser()
        parts = path.parts
        magic = [i for i, part in enumerate(parts) if not _MAGIC.isdisjoint(part)]
        if not magic or os.path.lexists(path):
            return cls(given, real_path(given))
        return cls(given, real_path(Path(*parts[: magic[0]])), parts[magic[0] :])

    def covers(self, document_id: str) -> bool:
        """Whether a file of this id is meant, if there is one."""
        base = self.base.as_posix().rstrip("/")
        if document_id == base:
            return not self.pattern
        below = document_id.removeprefix(base + "/")
        parts = below.split("/")
        return (
            below != document_id
            and not any(_is_skipped(part) for part in parts)
            and _matches(self.pattern, parts)
        )

    def may_hold(self, folder: Path) -> bool:
        """Whether a folder below `base` can hold files that are meant."""
        return _matches(self.pattern, folder.relative_to(self.base).parts, partly=True)


def list_files(targets: Sequence[Target], *, exclude: Path | None = None) -> Listing:
    """List the files that targets mean.

    Folders are read through, except hidden ones, `__pycache__`, `node_modules` and virtual
    environments; hidden files are left out too. Symbolic links are followed if they stay below
    the folder being read, and a file reached twice is listed once, under its own name.
    """
    listing = Listing()
    for target in targets:
        _list_target(target, listing, exclude)
    return listing


def _list_target(target: Target, listing: Listing, exclude: Path | None) -> None:
    try:
        is_folder = stat.S_ISDIR(target.base.stat().st_mode)
    except (FileNotFoundError, NotADirectoryError):
        listing.missing.append(target.given)
        return
    except OSError as error:  # below a folder that can't be entered, for instance
        listing.unread[target.base.as_posix()] = reason_of(error)
        return
    if is_folder:
        walk = _Walk(target, listing, exclude)
        walk.run()
        if target.pattern and not walk.n_found and not walk.n_unread:
            listing.missing.append(target.given)
    elif target.pattern:
        listing.missing.append(target.given)
    else:
        listing.add(target.base, named=True)


class _Walk:
    """One folder being read through. Paths come in pairs: as named, and with links resolved."""

    def __init__(self, target: Target, listing: Listing, exclude: Path | None) -> None:
        self.n_found = 0
        self.n_unread = 0
        self._target = target
        self._listing = listing
        self._seen = {exclude.resolve()} if exclude is not None else set()
        self._links: list[Path] = []

    def run(self) -> None:
        self._read_folders(self._target.base, self._target.base)
        # Links come last, so that what they point at keeps its own name where it has one.
        while self._links:
            links, self._links = sorted(self._links), []
            for link in links:
                self._follow(link)

    def _read_folders(self, folder: Path, real: Path) -> None:
        stack = [(folder, real)]
        while stack:
            folder, real = stack.pop()
            if real in self._seen or not self._target.may_hold(folder):
                continue
            self._seen.add(real)
            try:
                with os.scandir(folder) as entries:
                    found = [entry for entry in entries if not entry.name.startswith(".")]
            except OSError as error:
                self._unread(folder, reason_of(error))
                continue
            if folder != self._target.base and any(entry.name == _VENV_FILE for entry in found):
                continue
            for entry in found:
                if entry.is_symlink():
                    self._links.append(folder / entry.name)
                elif not entry.is_dir():
                    self._add(folder / entry.name, real / entry.name)
                elif not _is_skipped(entry.name):
                    stack.append((folder / entry.name, real / entry.name))

    def _add(self, path: Path, real: Path) -> None:
        if real in self._seen or not self._target.covers(path.as_posix()):
            return
        self._seen.add(real)
        self.n_found += 1
        if path.suffix.lower() in _BINARY_SUFFIXES:
            self._listing.not_text += 1
        else:
            self._listing.add(path, named=False)

    def _follow(self, link: Path) -> None:
        base = self._target.base
        try:
            real = link.resolve(strict=True)
        except (OSError, RuntimeError):  # a loop of links is a RuntimeError before Python 3.13
            self._unread(link, "a link that leads nowhere")
            return
        if not real.is_relative_to(base):
            self._unread(link, f"a link out of {base}, to {real}: not followed")
        elif real.is_dir():
            self._read_folders(link, real)
        else:
            self._add(link, real)

    def _unread(self, path: Path, reason: str) -> None:
        self.n_unread += 1
        self._listing.unread[path.as_posix()] = reason


def real_path(path: str | Path) -> Path:
    """Return the absolute path without links; what is not there has one too."""
    # Path.resolve would raise on a loop of links before Python 3.13
    return Path(os.path.realpath(Path(path).expanduser()))


def is_under(path: str, folder: str) -> bool:
    """Whether a POSIX path is the folder or lies in it."""
    return path == folder or path.startswith(folder.rstrip("/") + "/")


def reason_of(error: OSError) -> str:
    """Say what went wrong in words, without number and path."""
    return (error.strerror or type(error).__name__).lower()


def _is_skipped(name: str) -> bool:
    return name.startswith(".") or name in _SKIPPED_FOLDERS


def _matches(pattern: Sequence[str], parts: Sequence[str], *, partly: bool = False) -> bool:
    """Whether a pattern matches the parts or a folder above them; "**" is any number of parts.

    With `partly`, parts that are too few are enough.
    """
    if not pattern:
        return True
    if not parts:
        return partly
    if pattern[0] == "**":
        return _matches(pattern[1:], parts, partly=partly) or _matches(
            pattern, parts[1:], partly=partly
        )
    return fnmatchcase(parts[0], pattern[0]) and _matches(pattern[1:], parts[1:], partly=partly)
