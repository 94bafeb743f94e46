"""Names of methods, pieces of texts, BM25, and the base model beside sentence-transformers."""

import numpy as np
import pytest

from lmk_rag.errors import ConfigError
from lmk_rag.evaluation import DEFAULT_METHODS, Method, parse_methods
from lmk_rag.evaluation.baseline import Baseline
from lmk_rag.evaluation.bm25 import bm25_scores
from lmk_rag.evaluation.pieces import piece_tokens, token_spans


def test_names_say_what_a_method_does():
    found = parse_methods("cut@512, chunk-max@256/32,bm25,chunk-mean@128,bm25,chunk-max@256+bm25")
    assert found == [
        Method("cut@512", "cut", 512),
        Method("chunk-max@256/32", "chunk-max", 256, 32),
        Method("bm25", "bm25"),
        Method("chunk-mean@128", "chunk-mean", 128),
        Method(
            "chunk-max@256+bm25",
            "fusion",
            parts=(Method("chunk-max@256", "chunk-max", 256), Method("bm25", "bm25")),
        ),
    ]
    assert [(m.needs_base, m.needs_ours, m.needs_bm25) for m in found] == [
        (True, False, False),
        (True, False, False),
        (False, False, True),
        (True, False, False),
        (True, False, True),
    ]
    assert len(parse_methods(DEFAULT_METHODS)) == 16


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no methods were named"),
        ("cut", "there is no method 'cut'"),
        ("chunk-max@", "there is no method"),
        ("bm25@3", "there is no method"),
        ("fusion", "there is no method"),
        ("cut@512/64", "a cut text has no overlap; write cut@512"),
        ("chunk-max@64/64", "an overlap below it"),
        ("chunk-max@2", "a size of at least 3"),
        ("bm25+document+landmarks", "fuses 3 methods; expected two"),
    ],
)
def test_other_names_are_refused(text, message):
    with pytest.raises(ConfigError, match=message):
        parse_methods(text)


def word_offsets(text):
    ends = np.cumsum([len(word) + 1 for word in text.split(" ")]) - 1
    return np.array(
        [(end - len(word), end) for word, end in zip(text.split(" "), ends, strict=True)]
    )


def test_pieces_follow_each_other_without_overlap():
    text = "a bb c dd e ff g"
    offsets = word_offsets(text)
    ranges = piece_tokens(text, offsets, size=3, overlap=0)
    assert ranges.tolist() == [[0, 3], [3, 6], [6, 7]]
    assert [text[a:b] for a, b in token_spans(text, offsets, ranges)] == ["a bb c", "dd e ff", "g"]


def test_pieces_repeat_the_overlap():
    text = "a bb c dd e ff g"
    assert piece_tokens(text, word_offsets(text), size=3, overlap=1).tolist() == [
        [0, 3],
        [2, 5],
        [4, 7],
    ]


def test_pieces_end_at_words_and_cut_only_a_word_that_fills_them():
    text = "ab cdefgh"  # tokens: a b | c d e f g h
    offsets = np.array([(0, 1), (1, 2), *((i, i + 1) for i in range(3, 9))])
    assert piece_tokens(text, offsets, size=3, overlap=0).tolist() == [[0, 2], [2, 5], [5, 8]]
    assert piece_tokens(text, offsets, size=3, overlap=2).tolist() == [[0, 2], [2, 5], [5, 8]]
    assert piece_tokens(text, offsets, size=8, overlap=2).tolist() == [[0, 8]]


def test_a_text_without_tokens_is_one_piece():
    ranges = piece_tokens(" \n", np.zeros((0, 2), np.int64), size=3, overlap=0)
    assert ranges.tolist() == [[0, 0]]
    assert token_spans(" \n", np.zeros((0, 2), np.int64), ranges).tolist() == [[0, 2]]


def test_bm25_scores_shared_words_by_the_formula():
    pytest.importorskip("bm25s", reason="the extra eval is not installed")
    texts = ["Red pump, red valve", "a blue pump", "nothing"]
    scores = bm25_scores(texts, ["RED", "pump", "unknown a", ""])

    def gain(count, length, holding):
        idf = np.log(1 + (3 - holding + 0.5) / (holding + 0.5))
        return idf * count / (count + 1.2 * (1 - 0.75 + 0.75 * length / ((4 + 2 + 1) / 3)))

    none = -np.inf
    expected = [
        [gain(2, 4, 1), none, none],
        [gain(1, 4, 2), gain(1, 2, 2), none],
        [none, none, none],
        [none, none, none],
    ]
    np.testing.assert_allclose(scores, expected, rtol=1e-5)


def test_bm25_of_texts_without_words_finds_nothing():
    pytest.importorskip("bm25s", reason="the extra eval is not installed")
    assert np.isneginf(bm25_scores([" ", "?"], ["pump"])).all()


LONG = "The pump of station V-7 stops when the valve closes, and nobody restarts it now. " * 8


@pytest.mark.filterwarnings("ignore:text 0.* did not fit the window")
@pytest.mark.parametrize("pooling", ["mean", "cls"])
@pytest.mark.parametrize("window", [64, 20])
def test_a_cut_text_has_the_vector_sentence_transformers_gives_it(st_folder, pooling, window):
    import sentence_transformers

    folder = st_folder("bert", pooling=pooling, normalize=True)
    model = sentence_transformers.SentenceTransformer(str(folder), device="cpu")
    model.max_seq_length = window
    base = Baseline(folder, device="cpu", dtype="float32")
    texts = [LONG, "short text", "Write between the parts."]
    found = base.encoder(window).encode_documents(texts)
    np.testing.assert_allclose(
        np.stack([e.vector for e in found]), model.encode(texts), rtol=0, atol=1e-5
    )
    assert found[0].n_tokens == window - 2
    assert [e.truncated for e in found] == [True, False, False]


@pytest.mark.filterwarnings("ignore:text 0.* did not fit the window")
def test_a_configured_length_gives_way_to_the_one_asked_for(st_folder, edit_json):
    import sentence_transformers

    folder = st_folder("bert", pooling="mean")
    edit_json(folder / "sentence_bert_config.json", max_seq_length=16)
    model = sentence_transformers.SentenceTransformer(str(folder), device="cpu")
    model.max_seq_length = 64
    base = Baseline(folder, device="cpu", dtype="float32")
    assert base.encoder(16).max_length == 16
    (found,) = base.encoder(64).encode_documents([LONG])
    assert found.n_tokens == 62
    vector = model.encode([LONG])[0]
    np.testing.assert_allclose(found.vector, vector / np.linalg.norm(vector), rtol=0, atol=1e-5)


def test_a_length_beyond_the_positions_is_refused(st_folder):
    base = Baseline(st_folder("bert"), device="cpu", dtype="float32")
    with pytest.raises(ConfigError, match=r"can't read 65 tokens: max_length is 65, but .* 64"):
        base.encoder(65)
    with pytest.raises(ConfigError, match="can't read 66 tokens"):
        base.piece_encoder(64)
    assert base.piece_encoder(62).max_length == 64


def test_a_landmark_model_reads_as_it_was_saved(model_folder, tmp_path, load):
    from lmk_rag.config import LandmarkConfig

    with load(model_folder("modernbert"), LandmarkConfig(granularity=4)) as encoder:
        encoder.save(tmp_path / "lmk")
    base = Baseline(tmp_path / "lmk", device="cpu", dtype="float32")
    encoder = base.encoder(64)
    assert (encoder.pooling, encoder.config.granularity, encoder.max_length) == ("lmk", 4, 64)
