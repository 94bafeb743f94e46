"""Sequences with landmarks: ids, prompts, windows, overflow."""

import numpy as np
import pytest

from lmk_rag.config import LandmarkConfig
from lmk_rag.errors import CheckpointError, ConfigError, TextTooLongError
from lmk_rag.landmarks import LandmarkTokenizer

CLS, SEP = 2, 3  # of the toy WordPiece tokenizer
TEXT = "the pump stops when the valve closes and nobody restarts the pump now " * 6


@pytest.fixture(scope="module")
def tokenizer(build_tokenizer) -> LandmarkTokenizer:
    return LandmarkTokenizer(build_tokenizer("wordpiece"), insert_landmarks=True)


@pytest.fixture(scope="module")
def plain(build_tokenizer) -> LandmarkTokenizer:
    return LandmarkTokenizer(build_tokenizer("wordpiece"), insert_landmarks=False)


def lay_out(tokenizer, text=TEXT, *, prompt=None, max_length=512, k=4, **config):
    config = LandmarkConfig(**{"granularity": k, "boundary": "token"} | config)
    return tokenizer.lay_out(text, config, prompt=prompt, max_length=max_length)


def content(tokenizer, text=TEXT) -> list[int]:
    return tokenizer.tokenize(text)[0].tolist()


def test_a_landmark_follows_every_stretch_and_cls_comes_first(tokenizer):
    ids = content(tokenizer, "the pump stops when it")
    layout = lay_out(tokenizer, "the pump stops when it", k=2)
    expected = [CLS]
    for at in range(0, len(ids), 2):
        expected += [*ids[at : at + 2], SEP]
    (window,) = layout.windows
    assert window.ids.tolist() == expected
    assert window.ids[window.stretches[:, 1]].tolist() == [SEP] * len(window.stretches)
    assert window.n_context == 0
    assert not layout.truncated


def test_landmarks_are_known_by_position_when_the_text_spells_them(tokenizer):
    layout = lay_out(tokenizer, "a [SEP] b", k=1)
    assert layout.landmark_tokens.tolist() == [1] * len(content(tokenizer, "a [SEP] b"))
    assert (layout.windows[0].ids == SEP).sum() == len(layout.spans)


def test_without_landmarks_the_sequence_ends_with_one_sep(plain):
    (window,) = lay_out(plain, k=4).windows
    assert window.ids.tolist() == [CLS, *content(plain), SEP]
    assert window.stretches[0].tolist() == [1, 5]
    assert window.stretches[1].tolist() == [5, 9]


def test_a_prompt_stands_before_the_text_and_in_no_span(tokenizer):
    prompt = content(tokenizer, "query: ")
    with_prompt = lay_out(tokenizer, prompt="query: ")
    without = lay_out(tokenizer)
    (window,) = with_prompt.windows
    assert window.ids.tolist() == [CLS, *prompt, *without.windows[0].ids.tolist()[1:]]
    assert with_prompt.spans.tolist() == without.spans.tolist()
    assert with_prompt.landmark_tokens.tolist() == without.landmark_tokens.tolist()
    assert window.stretches[0, 0] == 1 + len(prompt)


@pytest.mark.parametrize("text", ["", " ", "\n\t\u00a0"])
def test_a_blank_text_has_one_landmark_without_tokens(tokenizer, text):
    layout = lay_out(tokenizer, text)
    assert layout.windows[0].ids.tolist() == [CLS, SEP]
    assert layout.windows[0].stretches.tolist() == [[1, 1]]
    assert layout.spans.tolist() == [[0, len(text)]]
    assert layout.landmark_tokens.tolist() == [0]


def test_a_text_of_dropped_characters_has_one_landmark_that_owns_them(tokenizer):
    layout = lay_out(tokenizer, "\u200b\u200b")
    assert layout.windows[0].ids.tolist() == [CLS, SEP]
    assert layout.spans.tolist() == [[0, 2]]


@pytest.mark.parametrize("inserting", [True, False])
@pytest.mark.parametrize("prompt", [None, "query: "])
@pytest.mark.parametrize("overlap", [0, 4, 10, 1000])
@pytest.mark.parametrize("boundary", ["token", "word", "sentence"])
def test_windows_repeat_the_last_stretches_and_own_each_landmark_once(
    build_tokenizer, inserting, prompt, overlap, boundary
):
    tokenizer = LandmarkTokenizer(build_tokenizer("wordpiece"), insert_landmarks=inserting)
    layout = lay_out(tokenizer, prompt=prompt, overlap=overlap, max_length=30, boundary=boundary)
    head = [CLS, *(content(tokenizer, prompt) if prompt else [])]
    assert len(layout.windows) > 2
    owned: list[list[int]] = []
    for window in layout.windows:
        assert len(window.ids) <= 30
        ids = window.ids.tolist()
        assert ids[: len(head)] == head
        stretches = [ids[a:b] for a, b in window.stretches]
        close = [SEP] if inserting else []
        laid = [token for stretch in stretches for token in [*stretch, *close]]
        assert ids == head + laid + ([] if inserting else [SEP])
        context = stretches[: window.n_context]
        assert context == owned[len(owned) - len(context) :]
        assert sum(len(stretch) for stretch in context) <= overlap
        assert len(stretches) > window.n_context
        owned += stretches[window.n_context :]
    assert [len(stretch) for stretch in owned] == layout.landmark_tokens.tolist()
    assert [token for stretch in owned for token in stretch] == content(tokenizer)


def test_overlap_gives_every_later_window_context(tokenizer):
    layout = lay_out(tokenizer, overlap=8, max_length=30)
    assert [window.n_context for window in layout.windows] == [0] + [2] * (len(layout.windows) - 1)


def test_a_text_that_just_fits_takes_one_window(tokenizer):
    needed = len(lay_out(tokenizer).windows[0].ids)
    assert len(lay_out(tokenizer, max_length=needed).windows) == 1
    assert len(lay_out(tokenizer, max_length=needed - 1).windows) == 2


def test_error_refuses_a_second_window(tokenizer):
    n = len(content(tokenizer))
    with pytest.raises(TextTooLongError, match=rf"has {n} tokens and needs \d+ windows of 30"):
        lay_out(tokenizer, max_length=30, on_overflow="error")


def test_error_lets_one_window_pass(tokenizer):
    assert len(lay_out(tokenizer, on_overflow="error").windows) == 1


def test_truncate_keeps_the_first_window_and_says_so(tokenizer):
    whole = lay_out(tokenizer, max_length=30)
    cut = lay_out(tokenizer, max_length=30, on_overflow="truncate")
    assert cut.truncated
    assert len(cut.windows) == 1
    assert cut.windows[0].ids.tolist() == whole.windows[0].ids.tolist()
    assert cut.spans.tolist() == whole.spans[: len(cut.spans)].tolist()
    assert len(cut.spans) == len(cut.landmark_tokens) == len(cut.windows[0].stretches)
    assert cut.spans[-1, 1] < len(TEXT)


def test_truncate_of_a_text_that_fits_is_not_truncated(tokenizer):
    assert not lay_out(tokenizer, on_overflow="truncate").truncated


@pytest.mark.parametrize(
    ("boundary", "smallest"), [("token", 1 + 4 + 1), ("word", 6), ("sentence", 1 + 6 + 1)]
)
def test_a_window_must_hold_one_whole_stretch(tokenizer, boundary, smallest):
    lay_out(tokenizer, boundary=boundary, max_length=smallest)
    with pytest.raises(ConfigError, match=f"window of {smallest - 1} tokens holds {smallest - 2}"):
        lay_out(tokenizer, boundary=boundary, max_length=smallest - 1)


def test_a_prompt_that_fills_the_window_is_refused(tokenizer):
    with pytest.raises(ConfigError, match="prompt of"):
        lay_out(tokenizer, prompt=TEXT, max_length=30)


def test_bos_and_eos_stand_in_where_there_is_no_cls_and_sep(build_tokenizer):
    tokenizer = LandmarkTokenizer(build_tokenizer("llama"), insert_landmarks=True)
    layout = lay_out(tokenizer, "the pump", k=100)
    assert layout.windows[0].ids.tolist() == [1, *content(tokenizer, "the pump"), 2]


def test_a_tokenizer_without_sep_and_eos_can_not_insert_landmarks(build_tokenizer):
    from transformers import PreTrainedTokenizerFast

    bare = PreTrainedTokenizerFast(
        tokenizer_object=build_tokenizer("wordlevel").backend_tokenizer, unk_token="[UNK]"
    )
    with pytest.raises(CheckpointError, match="neither a SEP nor an EOS"):
        LandmarkTokenizer(bare, insert_landmarks=True)
    LandmarkTokenizer(bare, insert_landmarks=False)


def test_ids_and_spans_are_whole_numbers_of_64_bits(tokenizer):
    layout = lay_out(tokenizer)
    assert layout.windows[0].ids.dtype == np.int64
    assert layout.spans.dtype == layout.landmark_tokens.dtype == np.int64


@pytest.mark.parametrize("name", ["modernbert", "roberta", "gpt2", "unigram", "llama"])
@pytest.mark.parametrize("inserting", [True, False])
def test_prompt_and_text_are_tokenized_as_the_one_string_they_make(
    build_tokenizer, name, inserting
):
    tokenizer = LandmarkTokenizer(build_tokenizer(name), insert_landmarks=inserting)
    whole = content(tokenizer, "query: the pump")
    layout = lay_out(tokenizer, "the pump", prompt="query: ", k=100)
    (window,) = layout.windows
    start, end = window.stretches[0]
    first = 0 if tokenizer.first_id is None or (name, inserting) in BARE else 1
    assert window.ids[first:end].tolist() == whole
    assert layout.landmark_tokens[0] == end - start == len(whole) - (start - first)
    assert layout.spans.tolist() == [[0, 8]]


BARE = {("gpt2", False), ("llama", False)}  # these add no token of their own


@pytest.mark.parametrize("name", ["wordpiece", "modernbert", "roberta", "gpt2", "unigram", "llama"])
@pytest.mark.parametrize("text", ["the pump stops", " two  spaces", "e\u0301"])
def test_without_landmarks_the_sequence_is_the_one_of_the_tokenizer(build_tokenizer, name, text):
    hf = build_tokenizer(name)
    plain = LandmarkTokenizer(hf, insert_landmarks=False)
    assert lay_out(plain, text, k=100).windows[0].ids.tolist() == hf(text).input_ids


def test_a_blank_text_without_frame_still_has_a_token_to_read(build_tokenizer):
    plain = LandmarkTokenizer(build_tokenizer("gpt2"), insert_landmarks=False)
    layout = lay_out(plain, " ")
    assert layout.windows[0].ids.tolist() == [plain.pad_id]
    assert layout.windows[0].stretches.tolist() == [[0, 0]]
    assert layout.landmark_tokens.tolist() == [0]


def test_a_prompt_spells_special_tokens_like_any_text(tokenizer):
    prompt = content(tokenizer, "[SEP] ")
    (window,) = lay_out(tokenizer, "the pump", prompt="[SEP] ", k=100).windows
    assert SEP not in prompt
    assert window.ids[1 : 1 + len(prompt)].tolist() == prompt


def test_a_blank_text_keeps_the_whole_prompt(build_tokenizer):
    tokenizer = LandmarkTokenizer(build_tokenizer("modernbert"), insert_landmarks=True)
    (window,) = lay_out(tokenizer, " \n", prompt="query: ").windows
    assert window.ids.tolist() == [CLS, *content(tokenizer, "query: "), SEP]
