"""What one sees of a run: a JSON log, checkpoints by the clock, a plot of the losses."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from lmk_rag.errors import require_extra

LOG = "log.jsonl"
PLOT = "loss.png"


class Watch(TrainerCallback):
    """Append every logged step to `log.jsonl` and save a checkpoint every few minutes.

    Args:
        folder: where the log goes.
        tokens: returns the content tokens seen so far in this process.
        save_minutes: between checkpoints.
        stop_minutes: stop, with a checkpoint, after this long; None: never.
    """

    def __init__(
        self,
        folder: Path,
        tokens: Callable[[], int],
        *,
        save_minutes: float,
        stop_minutes: float | None,
    ) -> None:
        self._folder = folder
        self._tokens = tokens
        self._save_seconds = 60 * save_minutes
        self._stop_seconds = None if stop_minutes is None else 60 * stop_minutes
        self._begin = self._saved = time.monotonic()

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        """Drop log lines that a resumed run will write again."""
        del args, control
        self._begin = self._saved = time.monotonic()
        path = self._folder / LOG
        kept = [row for row in read_log(path) if row["step"] <= state.global_step]
        path.write_text("".join(json.dumps(row) + "\n" for row in kept), "utf-8")

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, float] | None = None,
        **_: Any,
    ) -> None:
        """Append a line."""
        del args, control
        if not logs or "loss" not in logs:
            return
        seconds = time.monotonic() - self._begin
        row = {
            "step": state.global_step,
            **{k: v for k, v in logs.items() if k != "epoch"},
            "tokens": self._tokens(),
            "seconds": round(seconds, 1),
        }
        with (self._folder / LOG).open("a", encoding="utf-8") as log:
            log.write(json.dumps(row) + "\n")

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        """Ask for a checkpoint, or for the end, when it is time."""
        del args, state
        now = time.monotonic()
        if now - self._saved >= self._save_seconds:
            control.should_save = True
            self._saved = now
        if self._stop_seconds is not None and now - self._begin >= self._stop_seconds:
            control.should_save = control.should_training_stop = True


def read_log(path: Path) -> list[dict[str, Any]]:
    """Read `log.jsonl`; nothing if there is none."""
    if not path.is_file():
        return []
    lines = path.read_text("utf-8").splitlines()
    return [json.loads(line) for line in lines if line.endswith("}")]  # a kill may cut the last


def plot_losses(log: Path, image: Path) -> None:
    """Draw every objective over the steps.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    require_extra("matplotlib", "train", "the plot of the losses")
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    rows = read_log(log)
    figure = Figure(figsize=(8, 4.5), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    names = [k for k in (rows[0] if rows else {}) if k not in _NOT_LOSSES]
    for name in names:
        points = [(row["step"], row[name]) for row in rows if name in row]
        axes.plot(*zip(*points, strict=True), label=name, linewidth=2 if name == "loss" else 1)
    axes.set(xlabel="step", ylabel="loss (weighted)", yscale="log")
    if names:
        axes.legend()
    axes.grid(alpha=0.3)
    figure.savefig(image, dpi=120)


_NOT_LOSSES = {"step", "grad_norm", "learning_rate", "tokens", "seconds"}
