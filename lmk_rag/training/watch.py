"""What one sees of a run: a JSON log, checkpoints by the clock, a plot of the losses."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file
from torch import Tensor, distributed, nn
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from lmk_rag.errors import ConfigError, require_extra
from lmk_rag.writing import write_text

LOG = "log.jsonl"
PLOT = "loss.png"
_MARK = "complete"  # in a checkpoint that was written to its end
_LOSS_FILE = "loss.safetensors"


class Watch(TrainerCallback):
    """Append every logged step to `log.jsonl` and save a checkpoint every few minutes.

    What is logged of an objective is its value times its weight, in the mean over the steps since
    the last line; 0 in steps that have no say in it. The first line after a restart begins at its
    checkpoint.

    With several processes the first decides, and it alone writes; tokens are its own.

    Args:
        folder: where the log goes.
        loss: its own weights, if it has any beside the model's, are saved with a checkpoint.
        tokens: returns the content tokens of the first N batches of this process.
        advance: moves a progress bar by a number of steps.
        save_minutes: between checkpoints.
        stop_minutes: stop, with a checkpoint, after this long; None: never.

    Raises:
        ConfigError: as training begins, a checkpoint of another number of processes, each of
            which would go on with batches of others.
    """

    def __init__(
        self,
        folder: Path,
        loss: nn.Module,
        tokens: Callable[[int], int],
        advance: Callable[[int], None],
        *,
        save_minutes: float,
        stop_minutes: float | None,
    ) -> None:
        self._folder = folder
        self._loss = loss
        self._tokens = tokens
        self._advance = advance
        self._save_seconds = 60 * save_minutes
        self._stop_seconds = None if stop_minutes is None else 60 * stop_minutes
        self._begin = self._saved = time.monotonic()
        self.first_step = 0  # taken before this process
        self._before: dict[str, float] = {"tokens": 0, "seconds": 0.0}

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        """Drop log lines that a resumed run will write again."""
        del control
        self._begin = self._saved = time.monotonic()
        self.first_step = state.global_step
        mark = Path(str(args.output_dir)) / f"checkpoint-{state.global_step}" / _MARK
        if mark.is_file():
            self._before = json.loads(mark.read_text("utf-8"))
        begun = self._before.get("processes", args.world_size)
        if begun != args.world_size:
            raise ConfigError(
                f"the run in {self._folder} was begun by {begun:.0f} processes and there are "
                f"{args.world_size} now; start as many again, or choose another folder"
            )
        self._advance(state.global_step)
        if state.is_world_process_zero:
            path = self._folder / LOG
            kept = [row for row in read_log(path) if row["step"] <= state.global_step]
            write_text(path, "".join(json.dumps(row) + "\n" for row in kept))

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, float] | None = None,
        **_: Any,
    ) -> None:
        """Append a line; tokens and seconds count from the beginning of the run."""
        del args, control
        if not logs or "loss" not in logs or not state.is_world_process_zero:
            return
        row = {
            "step": state.global_step,
            **{k: v for k, v in logs.items() if k != "epoch"},
            **self._so_far(state),
        }
        with (self._folder / LOG).open("a", encoding="utf-8") as log:
            log.write(json.dumps(row) + "\n")

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        """Ask for a checkpoint, or for the end, when it is time."""
        del args
        self._advance(1)
        now = time.monotonic()
        save = now - self._saved >= self._save_seconds
        stop = self._stop_seconds is not None and now - self._begin >= self._stop_seconds
        save, stop = _decided_by_the_first(save, stop)
        if save or state.global_step >= state.max_steps:
            control.should_save = True
            self._saved = now
        if stop:
            control.should_save = control.should_training_stop = True

    def on_save(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        """Complete a checkpoint: the loss's own weights, then the mark that it is whole."""
        del control
        if state.is_world_process_zero:
            folder = Path(str(args.output_dir)) / f"checkpoint-{state.global_step}"
            own = own_weights(self._loss)
            if own:
                save_file(own, folder / _LOSS_FILE)
            mark = self._so_far(state) | {"processes": args.world_size}
            write_text(folder / _MARK, json.dumps(mark))

    def _so_far(self, state: TrainerState) -> dict[str, float]:
        """Return the tokens and seconds of the run, this process and those before it."""
        tokens = self._tokens(state.global_step - self.first_step)
        seconds = time.monotonic() - self._begin
        return {
            "tokens": tokens + self._before["tokens"],
            "seconds": round(seconds + self._before["seconds"], 1),
        }


def _decided_by_the_first(save: bool, stop: bool) -> tuple[bool, bool]:
    """Clocks differ: what the first process decides holds for all."""
    if not (distributed.is_available() and distributed.is_initialized()):
        return save, stop
    decision = [save, stop]
    distributed.broadcast_object_list(decision, src=0)
    return decision[0], decision[1]


def own_weights(loss: nn.Module) -> dict[str, Tensor]:
    """Return the weights of a loss beside its model's, such as RetroMAE's decoder."""
    state: dict[str, Tensor] = loss.state_dict()
    return {
        name: value.detach().cpu().contiguous()
        for name, value in state.items()
        if not name.startswith("model.")
    }


def whole_checkpoints(folder: Path) -> list[Path]:
    """Return the checkpoints that were written to their end, the oldest first."""
    steps = {path: path.name.rpartition("-")[2] for path in folder.glob("checkpoint-*")}
    whole = [path for path, n in steps.items() if n.isdecimal() and (path / _MARK).is_file()]
    return sorted(whole, key=lambda path: int(steps[path]))


def last_checkpoint(folder: Path, loss: nn.Module) -> str | None:
    """Return the newest whole checkpoint, and give the loss its own weights from there.

    One that a kill cut short has no mark; it is passed over.
    """
    found = whole_checkpoints(folder)
    if not found:
        return None
    newest = found[-1]
    if (newest / _LOSS_FILE).is_file():
        loss.load_state_dict(load_file(newest / _LOSS_FILE), strict=False)
    return str(newest)


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
    names = [k for k in dict.fromkeys(k for row in rows for k in row) if k not in _NOT_LOSSES]
    for name in names:
        points = [(row["step"], row[name]) for row in rows if name in row]
        axes.plot(*zip(*points, strict=True), label=name, linewidth=2 if name == "loss" else 1)
    axes.set(xlabel="step", ylabel="loss (weighted)", yscale="log")
    if names:
        axes.legend()
    axes.grid(alpha=0.3)
    figure.savefig(image, dpi=120)


_NOT_LOSSES = {"step", "grad_norm", "learning_rate", "tokens", "seconds"}
