"""Text to token ids with landmarks: cuts, character spans and windows. No torch.

    [CLS] prompt z1 [LMK] z2 [LMK] ... zn [LMK]

Landmarks, prompt and padding are known by position from here on; ids are never searched, so a
text that spells "[SEP]" is a text like any other.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import regex
from tokenizers import Tokenizer, normalizers

from lmk_rag.config import LandmarkConfig
from lmk_rag.errors import CheckpointError, ConfigError, TextTooLongError
from lmk_rag.spans import find_cuts, tile, window_runs
from lmk_rag.types import Ints

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

_SURROGATE = regex.compile(r"[\ud800-\udfff]")


@dataclass(frozen=True, eq=False)
class Window:
    """One sequence for the model.

    Attributes:
        ids: (T,) token ids, special tokens and prompt included.
        stretches: (W, 2) the token range of each landmark's stretch inside `ids`; where
            landmarks are inserted, the landmark stands at `stretches[i, 1]`.
        n_context: how many leading stretches repeat the window before, as context only.
    """

    ids: Ints
    stretches: Ints
    n_context: int


@dataclass(frozen=True, eq=False)
class LandmarkedText:
    """A text ready for the model.

    Attributes:
        spans: (L, 2) character spans that tile the text (see `spans.tile`).
        landmark_tokens: (L,) content tokens per landmark.
        windows: in order; their stretches after `n_context` are all L landmarks, once each.
        truncated: True if the text goes on after the last span.
    """

    spans: Ints
    landmark_tokens: Ints
    windows: tuple[Window, ...]
    truncated: bool


class LandmarkTokenizer:
    """A private tokenizer that inserts landmarks.

    The backend is copied, its truncation and padding are switched off once and never touched
    again: a fast tokenizer whose state is shared between threads returns wrong lengths.

    Args:
        tokenizer: a fast tokenizer; it is not modified.
        insert_landmarks: False for encoders that pool token states directly; the sequence is
            then framed as the tokenizer itself does, `[CLS] prompt z1 z2 ... zn [SEP]` mostly.
        lower_case: lower-case first, as some sentence-transformers folders ask for.

    Raises:
        CheckpointError: a slow tokenizer, or one without a token to serve as landmark.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerFast,
        *,
        insert_landmarks: bool,
        lower_case: bool = False,
    ) -> None:
        backend = getattr(tokenizer, "backend_tokenizer", None)
        if not isinstance(backend, Tokenizer):
            raise CheckpointError(
                f"{type(tokenizer).__name__} is a slow tokenizer without character offsets; "
                "a fast one (tokenizer.json) is needed"
            )
        self._backend = Tokenizer.from_str(backend.to_str())
        self._backend.no_truncation()
        self._backend.no_padding()
        self._backend.encode_special_tokens = True
        if lower_case:
            before = self._backend.normalizer
            steps = [normalizers.Lowercase()] + ([before] if before is not None else [])
            self._backend.normalizer = normalizers.Sequence(steps)
        self.insert_landmarks = insert_landmarks
        self.first_id = _first_of(tokenizer.cls_token_id, tokenizer.bos_token_id)
        self.landmark_id = _first_of(tokenizer.sep_token_id, tokenizer.eos_token_id)
        if self.landmark_id is None and insert_landmarks:
            raise CheckpointError(
                "the tokenizer has neither a SEP nor an EOS token to serve as landmark"
            )
        self._head, self._tail = [] if self.first_id is None else [self.first_id], list[int]()
        if not insert_landmarks:
            self._head, self._tail = self._frame()
        # What fills padded positions does not matter to us, but RoBERTa-like models want theirs.
        self.pad_id: int = _first_of(tokenizer.pad_token_id, self.landmark_id, 0) or 0
        added = self._backend.get_added_tokens_decoder()
        reserved = {id_ for id_, token in added.items() if token.special}
        self._reserved = (reserved | set(tokenizer.all_special_ids)) - {tokenizer.unk_token_id}

    def _frame(self) -> tuple[list[int], list[int]]:
        """Return the special tokens that the tokenizer puts before and after a text."""
        encoding = self._backend.encode("a")
        content = [i for i, special in enumerate(encoding.special_tokens_mask) if not special]
        if not content:  # a vocabulary without the letter
            half = len(encoding) // 2
            return encoding.ids[:half], encoding.ids[half:]
        return encoding.ids[: content[0]], encoding.ids[content[-1] + 1 :]

    def tokenize(self, text: str) -> tuple[Ints, Ints]:
        """Turn text into content tokens; no special token can come out.

        Returns:
            ids (T,) and character offsets (T, 2) into `text`.
        """
        # A lone surrogate can't be handed to the tokenizer; one-for-one keeps offsets true.
        # As a batch of one, because `encode` holds the GIL: seconds for a text of a megabyte.
        (encoding,) = self._backend.encode_batch(
            [_SURROGATE.sub("\ufffd", text)], add_special_tokens=False
        )
        ids: list[int] = encoding.ids
        offsets: list[tuple[int, int]] = encoding.offsets
        if not self._reserved.isdisjoint(ids):
            ids, offsets = self._spell_out(ids, offsets)
        return np.asarray(ids, dtype=np.int64), np.asarray(offsets, np.int64).reshape(-1, 2)

    def _spell_out(
        self, ids: list[int], offsets: list[tuple[int, int]]
    ) -> tuple[list[int], list[tuple[int, int]]]:
        """Replace special tokens that the vocabulary itself matched by their characters.

        Unigram and WordLevel models carry "</s>" as an ordinary piece, so `encode_special_tokens`
        alone does not keep a text from producing it.
        """
        new_ids: list[int] = []
        new_offsets: list[tuple[int, int]] = []
        for id_, (start, end) in zip(ids, offsets, strict=True):
            if id_ not in self._reserved:
                new_ids.append(id_)
                new_offsets.append((start, end))
                continue
            spelling = self._backend.id_to_token(id_) or ""
            exact = len(spelling) == end - start
            for i, character in enumerate(spelling):
                at = (start + i, start + i + 1) if exact else (start, end)
                for token in self._backend.model.tokenize(character):
                    if token.id not in self._reserved:
                        new_ids.append(token.id)
                        new_offsets.append(at)
        return new_ids, new_offsets

    def lay_out(
        self, text: str, config: LandmarkConfig, *, prompt: str | None, max_length: int
    ) -> LandmarkedText:
        """Cut a text into landmarks and windows.

        Args:
            text: any string. A blank one gets a single landmark without tokens.
            config: granularity, boundary rule, overlap and overflow rule.
            prompt: put before every window of the text; belongs to no span.
            max_length: tokens in a window, everything included.

        Raises:
            ConfigError: window, prompt and granularity do not fit together.
            TextTooLongError: the text needs more than one window and the config forbids it.
        """
        prompt_ids, ids, offsets = self._with_prompt(prompt or "", text)
        room = max_length - len(prompt_ids) - len(self._head) - len(self._tail)
        extra = int(self.insert_landmarks)  # the landmark itself
        if room < config.longest_stretch + extra:
            raise ConfigError(
                f"a window of {max_length} tokens holds {max(room, 0)} beside special tokens and a "
                f"prompt of {len(prompt_ids)}, but one landmark may need "
                f"{config.longest_stretch + extra}; lower the granularity, shorten the prompt or "
                "raise max_length"
            )
        cuts = find_cuts(text, offsets, config)
        tokens = np.diff(cuts.tokens)
        # Never more than half a window, or a window would bring little that is new.
        runs = window_runs(tokens + extra, tokens, room, min(config.overlap, room // 2))
        truncated = False
        if len(runs) > 1:
            if config.on_overflow == "error":
                raise TextTooLongError(
                    f"the text has {len(ids)} tokens and needs {len(runs)} windows of "
                    f'{max_length}; on_overflow="error" forbids more than one'
                )
            if config.on_overflow == "truncate":
                runs, truncated = runs[:1], True
        last = runs[-1][2]
        return LandmarkedText(
            spans=tile(cuts.characters)[:last],
            landmark_tokens=tokens[:last],
            windows=tuple(self._window(ids, cuts.tokens, prompt_ids, run) for run in runs),
            truncated=truncated,
        )

    def _with_prompt(self, prompt: str, text: str) -> tuple[Ints, Ints, Ints]:
        """Tokenize both at once: what a prompt's last space does to the first word of the text
        is up to the tokenizer. A token that reaches into the text is the text's.
        """
        ids, offsets = self.tokenize(prompt + text if text.strip() else prompt)
        own = int(np.argmax(np.append(offsets[:, 1] > len(prompt), True))) if prompt else 0
        return ids[:own], ids[own:], np.maximum(offsets[own:] - len(prompt), 0)

    def _window(self, ids: Ints, cuts: Ints, prompt_ids: Ints, run: tuple[int, int, int]) -> Window:
        context, _, end = run
        head = np.concatenate((self._head, prompt_ids))
        parts, stretches, position = [head], [], len(head)
        for i in range(context, end):
            stretch = ids[cuts[i] : cuts[i + 1]]
            stretches.append((position, position + len(stretch)))
            parts.append(stretch)
            position += len(stretch)
            if self.insert_landmarks:
                parts.append(np.array([self.landmark_id]))
                position += 1
        whole = np.concatenate((*parts, self._tail)).astype(np.int64)
        return Window(
            # A blank text without frame or prompt still needs a token for the model to read.
            ids=whole if len(whole) else np.array([self.pad_id]),
            stretches=np.array(stretches, dtype=np.int64).reshape(-1, 2),
            n_context=run[1] - context,
        )


def _first_of(*ids: int | None) -> int | None:
    return next((id_ for id_ in ids if id_ is not None), None)
