"""`train`: a recipe and a folder of data in, a model folder out; resumes where it stopped."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from datasets import Dataset
from sentence_transformers import (
    SentenceTransformer,
    SentenceTransformerTrainer,
    SentenceTransformerTrainingArguments,
)
from torch import nn
from transformers import PrinterCallback, set_seed

from lmk_rag.checkpoint import minilm
from lmk_rag.errors import ConfigError
from lmk_rag.progress import progress_bar
from lmk_rag.training.batches import BatchPlan
from lmk_rag.training.collate import LandmarkCollator, known_positives
from lmk_rag.training.examples import Example
from lmk_rag.training.loss import LandmarkLoss
from lmk_rag.training.modules import LandmarkTransformer
from lmk_rag.training.precision import MasterWeights
from lmk_rag.training.processes import is_first_process, process_count
from lmk_rag.training.recipe import Recipe
from lmk_rag.training.retromae import RetroMAELoss
from lmk_rag.training.sources import read_source
from lmk_rag.training.start import build_model, landmark_transformer
from lmk_rag.training.teacher import Teacher
from lmk_rag.training.watch import (
    LOG,
    PLOT,
    Watch,
    last_checkpoint,
    plot_losses,
    whole_checkpoints,
)
from lmk_rag.training.whitening import check_landmarks, whitening_layer
from lmk_rag.writing import write_text


@dataclass(frozen=True)
class TrainingResult:
    """Where a run left things.

    Attributes:
        folder: the model, in the format of `LandmarkEncoder` and sentence-transformers.
        steps: taken so far, of the recipe's.
        finished: False if it was stopped before; calling `train` again goes on.
        tokens: content tokens that this call learned from.
    """

    folder: Path
    steps: int
    finished: bool
    tokens: int


def train(
    recipe: Recipe,
    data: str | Path,
    output: str | Path,
    *,
    save_minutes: float = 5.0,
    stop_minutes: float | None = None,
    device: str = "auto",
    show_progress: bool = False,
) -> TrainingResult:
    """Train a landmark model.

    `output` gets `recipe.json`, `data.sha256`, `log.jsonl` (a line per logged step, every objective
    multiplied by its weight), `loss.png`, `checkpoints/` and, at the end of the call, `model/`. If
    it holds checkpoints of the same recipe and data, the run goes on from the last, exactly as if
    it had never stopped.

    Args:
        recipe: everything that decides the result.
        data: the folder that the recipe's files are in.
        output: a folder; made if needed.
        save_minutes: time between checkpoints.
        stop_minutes: stop after this long; None: at the recipe's last step.
        device: "auto", or "cpu" to keep off accelerators; which GPU is meant where there are
            several is set by CUDA_VISIBLE_DEVICES, as for every program of accelerate.
        show_progress: show a bar.

    Raises:
        ConfigError: `output` holds a run of another recipe or of other data, or the recipe can't be
            followed with this data, teacher or device.
        TrainingDataError: a file of another form.
        CheckpointError: a model that can't be read or converted.
    """
    if device not in ("auto", "cpu"):
        raise ConfigError(f"device is {device!r}; training takes 'auto' or 'cpu'")
    output = Path(output)
    output.mkdir(parents=True, exist_ok=True)
    processes = process_count()
    if processes > 1 and (recipe.mini_batch is not None or recipe.objective == "retromae"):
        raise ConfigError(
            f"{processes} processes were started; gradient caching (mini_batch) and RetroMAE run "
            "in one"
        )
    set_seed(recipe.seed)
    read = [read_source(source, Path(data), recipe) for source in recipe.sources]
    examples = [example for own, _ in read for example in own]
    pairs = [pair for _, own in read for pair in own]
    first = is_first_process()
    if first:
        _claim(output, recipe, examples)
    model = build_model(recipe, device=device)
    transformer = landmark_transformer(model)
    teacher = None
    if recipe.teacher != "" and recipe.objective == "retrieval":
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that a teacher has no landmarks is the point
            teacher = Teacher(
                recipe.teacher or minilm("the recipe's teacher"),
                max_length=recipe.teacher_length,
                device=str(model.device),  # with several processes, each one's own
            )
    _check_teaching(recipe, examples, transformer, teacher)
    collator = LandmarkCollator(
        examples,
        transformer,
        teacher,
        known_positives(examples, pairs),
        granularities=recipe.granularities,
        query_granularities=recipe.query_granularities,
        boundaries=recipe.boundaries,
        max_queries=recipe.max_queries,
        seed=recipe.seed,
    )
    loss = _loss(recipe, model).to(model.device)
    with progress_bar("training", recipe.steps, show=show_progress and first) as advance:
        watch = Watch(
            output,
            loss,
            lambda n: sum(collator.read[:n]),  # the trainer has the next batch made ahead
            advance,
            save_minutes=save_minutes,
            stop_minutes=stop_minutes,
        )
        trainer = SentenceTransformerTrainer(
            model=model,
            args=_arguments(recipe, examples, output, device),
            train_dataset=Dataset.from_dict({"index": list(range(len(examples)))}),
            loss=loss,
            data_collator=collator,  # type: ignore[arg-type]  # only called
            callbacks=[watch],
            optimizers=(_optimizer(recipe, loss), None),  # type: ignore[arg-type]  # both optional
        )
        trainer.remove_callback(PrinterCallback)  # standard output is the caller's
        last = last_checkpoint(output / "checkpoints", loss)
        trainer.train(resume_from_checkpoint=last)
    folder = output / "model"
    steps = trainer.state.global_step
    if trainer.is_world_process_zero():
        _save(model, folder, recipe, examples, device)
        plot_losses(output / LOG, output / PLOT)
    trainer.accelerator.wait_for_everyone()  # until the model is there
    tokens = sum(collator.read[: steps - watch.first_step])
    return TrainingResult(folder, steps, steps >= recipe.steps, tokens)


def _save(
    model: SentenceTransformer,
    folder: Path,
    recipe: Recipe,
    examples: Sequence[Example],
    device: str,
) -> None:
    model.to("cpu", getattr(torch, recipe.saved_dtype))
    if recipe.whitening is not None:
        with TemporaryDirectory(dir=folder.parent, prefix="unwhitened-") as unwhitened:
            model.save_pretrained(unwhitened, create_model_card=False)
            config, seed = landmark_transformer(model).config, recipe.seed
            layer = whitening_layer(
                unwhitened, config, examples, recipe.whitening, seed=seed, device=device
            )
        model.append(layer)
    model.save_pretrained(str(folder), create_model_card=False)


def _claim(output: Path, recipe: Recipe, examples: Sequence[Example]) -> None:
    """Write recipe and digest of the data, or make sure that they are those of the run so far."""
    path, digest_path = output / "recipe.json", output / "data.sha256"
    digest = hashlib.sha256(repr(examples).encode("utf-8", "surrogatepass")).hexdigest() + "\n"
    begun = whole_checkpoints(output / "checkpoints")
    if begun and path.is_file() and Recipe.read(path) != recipe:
        raise ConfigError(
            f"{output} holds a run of another recipe; choose another folder, or go on with {path}"
        )
    if begun and digest_path.is_file() and digest_path.read_text("utf-8") != digest:
        raise ConfigError(
            f"{output} holds a run on other data; choose another folder, or put the files back"
        )
    write_text(path, recipe.to_json())
    write_text(digest_path, digest)


def _check_teaching(
    recipe: Recipe,
    examples: list[Example],
    transformer: LandmarkTransformer,
    teacher: Teacher | None,
) -> None:
    """Refuse to train where nothing, or nothing that fits, would be taught."""
    if recipe.whitening is not None:
        check_landmarks(recipe.whitening, recipe.seed, examples, transformer)
    weights, asked = recipe.weights, any(example.queries for example in examples)
    if teacher is None:
        if recipe.objective == "retrieval" and not asked:
            raise ConfigError("there is no teacher and no query: nothing would be learned")
        return
    if not asked and not (weights.vector or weights.landmark or weights.relations):
        raise ConfigError(
            "no source has a query, and what has a weight is learned from queries: nothing would "
            "be learned; give vector, landmark or relations a weight"
        )
    own, theirs = transformer.get_embedding_dimension(), teacher.encoder.dim
    if own != theirs and (weights.vector or weights.landmark):
        raise ConfigError(
            f"the teacher's vectors have {theirs} dimensions, the model's {own}; the weights "
            "vector and landmark have to be 0, while its scores and relations can still be learned"
        )


def _loss(recipe: Recipe, model: SentenceTransformer) -> nn.Module:
    if recipe.objective == "retromae":
        mask_id = model.tokenizer.mask_token_id
        if mask_id is None:
            raise ConfigError("the tokenizer has no mask token, which RetroMAE needs")
        heads = int(landmark_transformer(model).auto_model.config.num_attention_heads)
        return RetroMAELoss(model, mask_id=mask_id, heads=heads)
    return LandmarkLoss(
        model,
        recipe.weights,
        temperature=recipe.temperature,
        score_temperature=recipe.score_temperature,
        mini_batch=recipe.mini_batch,
    )


def _optimizer(recipe: Recipe, loss: nn.Module) -> torch.optim.Optimizer | None:
    """Return one for low-precision weights; None leaves it to the trainer (AdamW)."""
    if recipe.dtype == "float32":
        return None
    trained = [p for p in loss.parameters() if p.requires_grad]
    groups = [
        {"params": [p for p in trained if p.ndim > 1], "weight_decay": recipe.weight_decay},
        {"params": [p for p in trained if p.ndim <= 1], "weight_decay": 0.0},
    ]
    return MasterWeights(groups, lr=recipe.learning_rate, betas=(0.9, recipe.beta2))


def _arguments(
    recipe: Recipe, examples: list[Example], output: Path, device: str
) -> SentenceTransformerTrainingArguments:
    plan = BatchPlan(
        examples,
        budget=recipe.batch_tokens,
        steps=recipe.steps * process_count(),  # each takes its share
        seed=recipe.seed,
        balance=recipe.balance,
        weights={source.name: source.weight for source in recipe.sources},
    )
    arguments = SentenceTransformerTrainingArguments(
        output_dir=str(output / "checkpoints"),
        max_steps=recipe.steps,
        batch_sampler=plan,
        learning_rate=recipe.learning_rate,
        lr_scheduler_type="cosine_with_min_lr",
        lr_scheduler_kwargs={"min_lr_rate": recipe.floor},
        warmup_steps=recipe.warmup_steps,
        weight_decay=recipe.weight_decay,
        adam_beta2=recipe.beta2,
        max_grad_norm=recipe.clip,
        seed=recipe.seed,
        data_seed=recipe.seed,
        logging_steps=recipe.log_steps,
        save_strategy="no",  # by the clock instead, see `Watch`
        save_total_limit=2,
        report_to=[],
        disable_tqdm=True,  # the bar is `Watch`'s
        logging_nan_inf_filter=False,
        use_cpu=device == "cpu",
        # A batch without queries makes one pass less, so no pass may talk to other processes.
        ddp_broadcast_buffers=False,
        remove_unused_columns=False,
        dataloader_pin_memory=torch.cuda.is_available(),
    )
    if arguments.n_gpu > 1:
        arguments._n_gpu = 1  # a process has one; several would be wrapped in DataParallel
    return arguments
