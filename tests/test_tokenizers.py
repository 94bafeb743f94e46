"""Spans of real tokenizers over awkward text, and special tokens spelled in it."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lmk_rag.boundaries import sentence_edges, word_edges
from lmk_rag.config import LandmarkConfig
from lmk_rag.errors import CheckpointError
from lmk_rag.landmarks import LandmarkTokenizer

BOUNDARIES = ["token", "word", "sentence"]
GRANULARITIES = [1, 2, 3, 5, 32]
FIELD_TEXTS = [
    "価格：１２３㌔…½杯！",  # FR-O-01
    "Grüße, café ☕️ 日本 🚀!",  # FR-O-02
    "e\u0301a\u0301 o\u0308",  # FR-O-03
    "a\u200bb\u200dc",
    "\ufeffabc",
    "שלום abc \u202eאב\u202c",
    "👩\u200d👩\u200d👧\u200d👦 x",
    "Restart the pump now.\n" * 12,  # FR-O-04
    "if x:\n\tfor y in z:\n\t\tprint( y )\n\n\n    # end  \n",  # FR-O-05
    "| part | qty |\n|---|---|\n| bolt M6 | 12 |\n| nut  M6 | 12 |\n",
    "<table><tr><td>A&amp;B</td>\n<td>&nbsp;7</td></tr></table>",
    "Write [SEP] between parts, then </s> and <|endoftext|>; leave [PAD], [CLS] and [MASK] alone.",
    "foo  bar   baz  ",  # FR-O-13
    "",  # FR-O-09
    "   ",
    "\n\t\u00a0",
    "bad \ud800 char",  # FR-O-10
    "nul \x00 byte",
    "\x00",
    "\ud83d\ude80 split",
    "\u0301\u0301",
    "ﷺﷺ İıſß ㍿",
    "...…??!!",
]
PIECES = (
    "\u0301,\u200d,\u200b,\ufeff,👩\u200d👧,🇩🇪,🚀,\ud800,\udfff,ש,ع,\u202e,字,価格,…,½,㌔,ﬁ,İ,é,e\u0301,"
    "\x00,▁,Ġ,##,.,</s>,[SEP],<|endoftext|>,<0x0A>,pump,V-7,don't,\U0010ffff,가,\u1100\u1161,"
    "\r\n,\n\n,\t, ,  ,    ,\u00a0,\u3000,\u2028"
)
ODD = st.sampled_from(PIECES.split(","))
TEXT = st.one_of(
    st.lists(ODD | st.text(max_size=3), max_size=12).map("".join),
    st.text(st.characters(exclude_categories=()), max_size=25),
)


@pytest.fixture
def lay_out(any_tokenizer, assert_span_rule):
    """Cut a text with each tokenizer, check the span rule, return what came out."""
    tokenizer = LandmarkTokenizer(any_tokenizer, insert_landmarks=True)

    def make(text: str, k: int, boundary: str, **options):
        config = LandmarkConfig(granularity=k, boundary=boundary, **options)
        layout = tokenizer.lay_out(text, config, prompt=None, max_length=60)
        assert_span_rule(text, layout.spans)
        owned = sum(len(window.stretches) - window.n_context for window in layout.windows)
        assert len(layout.spans) == len(layout.landmark_tokens) == owned
        assert layout.landmark_tokens.max() <= config.longest_stretch
        offsets = tokenizer.tokenize(text)[1] if text.strip() else []
        assert layout.landmark_tokens.sum() == len(offsets)
        owners = np.repeat(layout.spans, layout.landmark_tokens, axis=0)
        for (start, end), (first, last) in zip(offsets, owners, strict=True):
            assert max(start, first) <= min(end, last)  # a token is in, or at, its span
        return layout

    make.tokenizer = tokenizer
    return make


@pytest.mark.parametrize("boundary", BOUNDARIES)
@pytest.mark.parametrize("k", GRANULARITIES)
def test_spans_tile_the_texts_of_the_field_reports(lay_out, k, boundary):
    for text in FIELD_TEXTS:
        lay_out(text, k, boundary)


@settings(max_examples=150)
@given(text=TEXT, k=st.sampled_from(GRANULARITIES), boundary=st.sampled_from(BOUNDARIES))
def test_spans_tile_any_text(lay_out, text, k, boundary):
    lay_out(text, k, boundary, overlap=4)


@pytest.mark.parametrize("k", GRANULARITIES)
def test_token_boundary_gives_every_landmark_k_tokens_but_the_last(lay_out, k):
    for text in FIELD_TEXTS:
        tokens = lay_out(text, k, "token").landmark_tokens.tolist()
        count = len(lay_out.tokenizer.tokenize(text)[0]) if text.strip() else 0
        rest = count % k
        assert tokens == ([k] * (count // k) + [rest] * (rest > 0) or [0])


@settings(max_examples=80)
@given(text=TEXT, k=st.sampled_from([2, 3, 5, 32]))
def test_word_boundary_splits_a_word_only_when_it_fills_the_stretch(lay_out, text, k):
    layout = lay_out(text, k, "word")
    edges = word_edges(text)
    offsets = lay_out.tokenizer.tokenize(text)[1]
    cuts = [0, *np.cumsum(layout.landmark_tokens).tolist()]
    for first, last, end in zip(cuts, cuts[1:-1], layout.spans[:, 1], strict=False):
        if not edges[end]:
            assert last - first == k
            better = [
                token
                for token in range(first + 1, last)
                if offsets[token, 0] >= offsets[:token, 1].max() and edges[offsets[token, 0]]
            ]
            assert better == []


def test_sentence_boundary_ends_every_stretch_at_a_sentence_when_all_are_short(lay_out):
    text = "The pump stops. It restarts!\nA valve closes when? Nobody knows... Really. " * 8
    edges = sentence_edges(text)
    assert all(edges[end] for end in lay_out(text, 32, "sentence").spans[:, 1])


@pytest.mark.parametrize("boundary", BOUNDARIES)
@pytest.mark.parametrize(
    "text", ["A" * 50_000 + " end", "QUJD" * 10_000, "字" * 5_000], ids=["one", "base64", "han"]
)
def test_a_very_long_word_is_cut_into_stretches_of_at_most_k(lay_out, text, boundary):
    layout = lay_out(text, 16, boundary)
    limit = 24 if boundary == "sentence" else 16
    assert layout.landmark_tokens.max() <= limit


SPELLINGS = [
    "[SEP]",
    "</s>",
    "<|endoftext|>",
    "<s>",
    "[PAD]",
    "[CLS]",
    "[MASK]",
    "<pad>",
    "<mask>",
]
SENTENCES = ["{0}", " {0} ", "pump {0} valve", "pump{0}valve", "{0}{0}", "{0} {0} x", "ﬁ {0}…"]


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_a_spelled_special_token_stays_text(lay_out, any_tokenizer, spelling):
    reserved = set(any_tokenizer.all_special_ids) - {any_tokenizer.unk_token_id}
    for sentence in SENTENCES:
        text = sentence.format(spelling)
        ids, offsets = lay_out.tokenizer.tokenize(text)
        assert len(ids) >= 1
        assert reserved.isdisjoint(ids.tolist())
        assert {any_tokenizer.sep_token_id, any_tokenizer.eos_token_id}.isdisjoint(ids.tolist())
        assert text[offsets[0, 0] :].strip()[:1] == text.strip()[:1]
        for k in (1, 4):
            lay_out(text, k, "token")


def test_a_special_token_in_a_unigram_vocabulary_is_spelled_out(build_tokenizer):
    hf = build_tokenizer("unigram")
    backend = hf.backend_tokenizer
    assert backend.model.tokenize("</s>")[-1].id == hf.sep_token_id  # the trap is real
    tokenizer = LandmarkTokenizer(hf, insert_landmarks=True)
    ids, offsets = tokenizer.tokenize("the </s> pump")
    assert hf.sep_token_id not in ids.tolist()
    # the word's marker, then the four characters, each at its own place
    assert [at for at in offsets.tolist() if 4 <= at[0] < 8] == [
        [4, 5],
        [4, 5],
        [5, 6],
        [6, 7],
        [7, 8],
    ]


def test_a_special_token_in_a_word_vocabulary_is_spelled_out(build_tokenizer):
    hf = build_tokenizer("wordlevel")
    tokenizer = LandmarkTokenizer(hf, insert_landmarks=True)
    ids, offsets = tokenizer.tokenize("pump [SEP] now")
    words = [hf.convert_ids_to_tokens(int(i)) for i in ids]
    assert words == ["pump", "[", "S", "[UNK]", "[UNK]", "]", "now"]
    assert offsets.tolist() == [[0, 4], [5, 6], [6, 7], [7, 8], [8, 9], [9, 10], [11, 14]]


def test_the_given_tokenizer_is_neither_shared_nor_changed(build_tokenizer):
    hf = build_tokenizer("wordpiece")
    hf.backend_tokenizer.enable_truncation(5)
    hf.backend_tokenizer.enable_padding(length=50)
    before = hf.backend_tokenizer.to_str()
    ids, _ = LandmarkTokenizer(hf, insert_landmarks=True).tokenize("the pump stops [SEP] " * 9)
    after = hf.backend_tokenizer.to_str()
    hf.backend_tokenizer.no_truncation()
    hf.backend_tokenizer.no_padding()
    assert len(ids) > 50
    assert before == after
    assert hf("[SEP]", add_special_tokens=False).input_ids == [hf.sep_token_id]


def test_a_lone_surrogate_counts_as_one_replacement_character(lay_out):
    for text in ("bad \ud800 char", "\udfff", "a\ud800\ud800b"):
        ids, offsets = lay_out.tokenizer.tokenize(text)
        same_ids, same_offsets = lay_out.tokenizer.tokenize(
            text.translate({0xD800: "\ufffd", 0xDFFF: "\ufffd"})
        )
        assert np.array_equal(ids, same_ids)
        assert np.array_equal(offsets, same_offsets)


def test_lower_case_lowers_before_anything_else(build_tokenizer):
    hf = build_tokenizer("modernbert")
    lower = LandmarkTokenizer(hf, insert_landmarks=False, lower_case=True)
    plain = LandmarkTokenizer(hf, insert_landmarks=False)
    assert lower.tokenize("The PUMP")[0].tolist() == plain.tokenize("the pump")[0].tolist()
    assert plain.tokenize("The PUMP")[0].tolist() != plain.tokenize("the pump")[0].tolist()


def test_a_slow_tokenizer_is_refused():
    class Slow:
        pass

    with pytest.raises(CheckpointError, match="Slow is a slow tokenizer without character offsets"):
        LandmarkTokenizer(Slow(), insert_landmarks=True)
