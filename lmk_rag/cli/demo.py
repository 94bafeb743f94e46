"""`lmk-rag demo`: the sources of the Python standard library, which are on every machine."""

from __future__ import annotations

import platform
import shlex
import sysconfig
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lmk_rag.cli.opening import open_store
from lmk_rag.cli.options import (
    DeviceOption,
    DtypeOption,
    JsonOption,
    ModelChoice,
    ModelOption,
)
from lmk_rag.cli.search import passage_json, print_passages
from lmk_rag.cli.terminal import counted, print_json, say
from lmk_rag.files import FileSource
from lmk_rag.progress import progress_bar

if TYPE_CHECKING:
    from lmk_rag import Passage, QdrantStore

# Long, well documented modules, about 210,000 tokens; those that the questions need come first.
_MODULES = (
    "threading.py statistics.py heapq.py shutil.py difflib.py tempfile.py logging/handlers.py "
    "http/client.py concurrent/futures/process.py asyncio/locks.py asyncio/queues.py random.py "
    "pathlib.py pathlib/__init__.py socket.py contextlib.py copy.py json/encoder.py "
    "json/decoder.py sched.py shelve.py queue.py os.py functools.py textwrap.py weakref.py"
)
_QUESTIONS = (
    "What happens when a thread acquires a lock that it already holds?",
    "What is the average speed of a car that drives at different speeds?",
    "How can many sorted files be merged into one?",
    "What becomes of symbolic links when a tree of folders is copied?",
)
_COLLECTION = "demo"
_STEP = 3
_INDEXING_SECONDS = 60.0  # after that no more modules are read, so that slow machines get there


def demo(
    store: Annotated[
        str | None,
        typer.Option("--store", help="Keep the index in this folder or server.  [default: none]"),
    ] = None,
    model: ModelOption = None,
    device: DeviceOption = "auto",
    dtype: DtypeOption = "auto",
    as_json: JsonOption = False,
) -> None:
    """Index Python's own standard library and answer a few questions about it.

    Takes less than two minutes on two cores and needs no network.
    """
    files = stdlib_files()
    if not files:
        say("this Python has no standard library sources; index a folder of your own instead:")
        say("  lmk-rag index PATH")
        raise typer.Exit(1)
    say(f"indexing {len(files)} modules of Python {platform.python_version()} ...")
    choice = ModelChoice(model, device, dtype)
    with _in_memory(choice) if store is None else open_store(store, _COLLECTION, choice) as opened:
        from lmk_rag import Retriever

        started = time.perf_counter()
        indexed = _index(opened, files)
        seconds = time.perf_counter() - started
        stored_now = list(opened.documents())
        retriever = Retriever(opened)
        answers = [(question, retriever.search(question, k=1)) for question in _QUESTIONS]
    tokens = sum(info.n_tokens for info in stored_now)
    landmarks = sum(info.n_landmarks for info in stored_now)
    say(
        f"{counted(indexed, 'module')}, {counted(tokens, 'token')}, "
        f"{counted(landmarks, 'landmark')} in {seconds:.0f} s"
    )
    if indexed < len(files):
        say(f"(left out to save time: the other {len(files) - indexed})")
    _print_answers(answers, as_json=as_json)
    say("")
    if store is not None:
        say("Ask more:")
        place = f"--store {shlex.quote(store)} --collection {_COLLECTION}"
        say(f"  lmk-rag search 'YOUR QUESTION' {place}")
    say("Your own files:")
    say("  lmk-rag index PATH")
    say("  lmk-rag search 'YOUR QUESTION'")


def stdlib_files() -> list[str]:
    """Return the modules of the demo that this Python has."""
    folder = Path(sysconfig.get_paths()["stdlib"])
    paths = (folder / name for name in _MODULES.split())
    return [str(path) for path in paths if path.is_file()]


def _index(store: QdrantStore, files: list[str]) -> int:
    """Index files in small steps until the time is up; returns how many there was time for."""
    deadline = time.monotonic() + _INDEXING_SECONDS
    with progress_bar("indexing", len(files), show=True) as advance:
        for done in range(0, len(files), _STEP):
            if done and time.monotonic() > deadline:
                return done
            store.add(FileSource(files[done : done + _STEP]).documents(), on_progress=advance)
    return len(files)


@contextmanager
def _in_memory(choice: ModelChoice) -> Iterator[QdrantStore]:
    from lmk_rag import QdrantStore

    with choice.load() as encoder, QdrantStore(_COLLECTION, encoder=encoder) as store:
        yield store


def _print_answers(answers: list[tuple[str, list[Passage]]], *, as_json: bool) -> None:
    if as_json:
        print_json(
            [
                {"question": question, "passages": [passage_json(p) for p in passages]}
                for question, passages in answers
            ]
        )
        return
    for question, passages in answers:
        typer.echo("")
        typer.secho(question, bold=True)
        print_passages(passages)
