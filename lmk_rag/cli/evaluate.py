"""`lmk-rag eval`: methods side by side on sets with judged queries."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lmk_rag.cli.options import (
    BoundaryOption,
    DeviceOption,
    DtypeOption,
    GranularityOption,
    JsonOption,
    MaxLengthOption,
    ModelChoice,
    ModelOption,
    OverlapOption,
)
from lmk_rag.cli.terminal import print_json, say
from lmk_rag.errors import ConfigError, InputError, require_extra
from lmk_rag.evaluation.methods import DEFAULT_METHODS, HELP, Method, parse_methods

if TYPE_CHECKING:
    from lmk_rag import LandmarkEncoder
    from lmk_rag.evaluation import RetrievalSet
    from lmk_rag.evaluation.baseline import Baseline
    from lmk_rag.evaluation.cache import ArrayCache
    from lmk_rag.evaluation.results import Results, Tree
    from lmk_rag.evaluation.session import SetSession


def evaluate(
    folders: Annotated[
        list[str],
        typer.Argument(
            metavar="FOLDER",
            help="Sets in BEIR form: corpus.jsonl, queries.jsonl (or .gz) and qrels.tsv.",
        ),
    ],
    methods: Annotated[
        str, typer.Option("--methods", metavar="A,B,...", help=f"Their names: {HELP}.")
    ] = DEFAULT_METHODS,
    model: ModelOption = None,
    base: Annotated[
        str | None,
        typer.Option(
            "--base",
            metavar="MODEL",
            help="The model to compare with, a folder or Hugging Face name. "
            "[default: all-MiniLM-L6-v2]",
        ),
    ] = None,
    label: Annotated[
        str | None,
        typer.Option(
            "--label", help="Put after our methods' names, to tell models in one output apart."
        ),
    ] = None,
    granularity: GranularityOption = None,
    boundary: BoundaryOption = None,
    max_length: MaxLengthOption = None,
    overlap: OverlapOption = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            help="A folder for results.json, results.md, a plot and TREC runs; results that are "
            "there stay, those of the same set and method are replaced.",
        ),
    ] = None,
    trec: Annotated[
        bool,
        typer.Option(
            "--runs/--no-runs",
            help="Whether --output gets TREC runs, which can't carry ids with white space.",
        ),
    ] = True,
    cache: Annotated[
        Path | None,
        typer.Option("--cache", help="A folder for vectors, so that no text is encoded twice."),
    ] = None,
    limit_docs: Annotated[
        int | None, typer.Option("--limit-docs", min=1, help="Only the first documents.")
    ] = None,
    limit_queries: Annotated[
        int | None,
        typer.Option("--limit-queries", min=1, help="Only the first queries that can be answered."),
    ] = None,
    device: DeviceOption = "auto",
    dtype: DtypeOption = "auto",
    as_json: JsonOption = False,
) -> None:
    """Compare ways to search long documents on sets with judged queries.

    Each text is encoded once per model and setting, and every method of that encoding is worked
    out from it. Results are written after every method, so a run that was stopped loses nothing,
    and with --cache the same command goes on where it stopped. Needs the extra `eval`.
    """
    from lmk_rag.evaluation import limit, load_set
    from lmk_rag.evaluation.cache import ArrayCache
    from lmk_rag.evaluation.results import Results
    from lmk_rag.evaluation.runs import check_ids

    try:
        chosen = parse_methods(methods)
    except ConfigError as error:
        raise typer.BadParameter(str(error), param_hint="--methods") from error
    if label is not None and (not label or set(label) & set(":/+")):
        raise typer.BadParameter("--label is a word without ':', '/' and '+'")
    _check_extras(chosen, output)
    sets = [limit(load_set(f), documents=limit_docs, queries=limit_queries) for f in folders]
    _check_names(sets)
    if output is not None and trec:
        for data in sets:
            check_ids([*data.queries, *(document.id for document in data.documents)])
    choice = ModelChoice(model, device, dtype, granularity, boundary, max_length, overlap)
    results = Results(None if output is None else output / "results.json")
    with ExitStack() as stack:
        encoder = None
        if any(method.needs_ours for method in chosen):
            encoder = stack.enter_context(choice.load())
        baseline = _baseline(base, device, dtype) if _base_is_used(chosen, sets) else None
        job = _Job(chosen, encoder, baseline, ArrayCache(cache), results, output, trec, label)
        for data in sets:
            results.check(data)
        for data in sets:
            job.run(data)
    if output is not None:
        from lmk_rag.evaluation.plot import plot_by_length

        plot_by_length(results.tree, output / "quality_by_length.png")
    if as_json:
        print_json(results.tree)
    else:
        _show(results.tree, [data.label for data in sets])


@dataclass(frozen=True, eq=False)
class _Job:
    """What is the same for every set."""

    methods: list[Method]
    encoder: LandmarkEncoder | None
    baseline: Baseline | None
    cache: ArrayCache
    results: Results
    output: Path | None
    trec: bool
    label: str | None

    def run(self, data: RetrievalSet) -> None:
        """Run all methods on one set, writing after each."""
        from lmk_rag.evaluation.comparing import compare
        from lmk_rag.evaluation.session import SetSession
        from lmk_rag.evaluation.tables import markdown

        session = SetSession(
            data,
            encoder=self.encoder,
            base=self.baseline,
            cache=self.cache,
            show_progress=True,
        )
        try:
            for method in self.methods:
                result = session.evaluate(method)
                say(f"{data.label}: {self.key(method)} {result.scores['nDCG@10']:.3f} nDCG@10")
                self.results.put(data, self.key(method), result, self._settings(method))
                self.results.put_encodings(
                    data, {self._of(name): cost for name, cost in session.encodings.items()}
                )
                self._write_run(data, method, session)
            named, judged = self._all_judged(data, session)
            self.results.put_significance(
                data,
                compare(named, judged),
                measured=[self.key(method) for method in self.methods],
                compared=named,
            )
        finally:
            session.close()
            if self.output is not None:
                from lmk_rag.writing import write_text

                write_text(self.output / "results.md", markdown(self.results.tree))

    def _all_judged(
        self, data: RetrievalSet, session: SetSession
    ) -> tuple[dict[str, Method], dict[str, dict[str, dict[str, float]]]]:
        """Return methods and their metrics by query, of this run and of earlier ones kept."""
        from lmk_rag.evaluation import judge, read_trec

        named = {self.key(method): method for method in self.methods}
        judged = {key: session.per_query[method.name] for key, method in named.items()}
        for key in self.results.tree["sets"][data.label]["methods"]:
            path = self._run_path(data, key)
            if key not in named and path is not None and path.exists():
                (named[key],) = parse_methods(key.partition(":")[0])
                judged[key] = judge(read_trec(path), data.qrels)
        return named, judged

    def key(self, method: Method) -> str:
        """Return the name of a method in tables."""
        return f"{method.name}:{self.label}" if self.label and method.needs_ours else method.name

    def _of(self, encoding: str) -> str:
        return f"{encoding}:{self.label}" if self.label and encoding == "ours" else encoding

    def _settings(self, method: Method) -> dict[str, object]:
        settings: dict[str, object] = {}
        if method.needs_ours and self.encoder is not None:
            config = self.encoder.config
            settings |= {
                "model": Path(self.encoder.name).name,
                "fingerprint": self.encoder.fingerprint,
                "granularity": config.granularity,
                "boundary": config.boundary,
                "window": self.encoder.max_length,
                "overlap": config.overlap,
                "dtype": str(self.encoder.dtype).removeprefix("torch."),
            }
        if method.needs_base and self.baseline is not None:
            settings["base"] = self.baseline.name
        return settings

    def _run_path(self, data: RetrievalSet, key: str) -> Path | None:
        if self.output is None:
            return None
        folder = self.output / "runs" / data.label.replace("/", "_")
        return folder / f"{key.replace('/', '_')}.trec"

    def _write_run(self, data: RetrievalSet, method: Method, session: SetSession) -> None:
        path = self._run_path(data, self.key(method))
        if path is None:
            return
        if self.trec:
            from lmk_rag.evaluation.runs import write_trec

            write_trec(session.runs[method.name], path)
        else:
            path.unlink(missing_ok=True)  # of the result that this one replaced


def _check_extras(methods: list[Method], output: Path | None) -> None:
    """Fail before anything is encoded."""
    require_extra("ir_measures", "eval", "lmk-rag eval")
    if any(method.needs_bm25 for method in methods):
        require_extra("bm25s", "eval", "BM25")
    if output is not None:
        require_extra("matplotlib", "eval", "the plot")


def _check_names(sets: list[RetrievalSet]) -> None:
    names = [data.name for data in sets]
    for name in names:
        if names.count(name) > 1:
            raise InputError(f"two folders are called {name}; results are kept by that name")


def _base_is_used(methods: list[Method], sets: list[RetrievalSet]) -> bool:
    """Whether the base model is run, or its tokens are the measure of answers."""
    if any(method.needs_base for method in methods):
        return True
    shows = any(method.kind in ("retriever", "hybrid") for method in methods)
    return shows and any(data.answers for data in sets)


def _baseline(base: str | None, device: str, dtype: str) -> Baseline:
    from lmk_rag.evaluation.baseline import Baseline

    folder = None if base is None else Path(base).expanduser()
    model = folder if folder is not None and folder.is_dir() else base
    return Baseline(model, device=device, dtype=dtype)


def _show(tree: Tree, labels: list[str]) -> None:
    """Print what was measured on the sets of this run, and the means over them."""
    from rich.console import Console
    from rich.table import Table

    from lmk_rag.evaluation.metrics import METRICS
    from lmk_rag.evaluation.tables import answer_rows, figure, group_rows, metric_rows

    console = Console()

    def show(title: str, head: list[str], rows: list[tuple[str, list[str]]]) -> None:
        table = Table(head[0], title=title, title_justify="left")
        for column in head[1:]:
            table.add_column(column, justify="right")
        for key, cells in rows:
            table.add_row(key, *cells)
        console.print(table)

    sets = {label: tree["sets"][label] for label in labels}
    for label, of in sets.items():
        rows = [
            (key, [figure(entry["scores"][metric]) for metric in METRICS])
            for key, entry in of["methods"].items()
        ]
        title = f"{label}: {of['documents']:,} documents, {of['queries']:,} queries"
        show(title, ["method", *METRICS], rows)
        head, answers = answer_rows(of)
        if answers:
            show(f"{label}: answers within a budget", head, answers)
        for head, groups in group_rows(of, "by_passkey_length"):
            show(f"{label}: by length", head, groups)
    if len(sets) > 1:
        by_metric = [metric_rows({"sets": sets}, metric) for metric in METRICS]
        means = [(own[0][0], [row[1][-1] for row in own]) for own in zip(*by_metric, strict=True)]
        show(f"mean of {len(sets)} sets", ["method", *METRICS], means)
