"""Toy tokenizers and random two-layer models, built in code: nothing is downloaded."""

import os

os.environ["HF_HUB_OFFLINE"] = "1"  # before any import reads it: no test may reach the network
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # each core has a worker of its own

import asyncio
import functools
import itertools
import json
import re
import threading
import warnings
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, settings
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from tokenizers import processors as post
from transformers import (
    BertConfig,
    BertModel,
    EuroBertConfig,
    EuroBertModel,
    GteConfig,
    GteModel,
    JinaEmbeddingsV3Config,
    JinaEmbeddingsV3Model,
    LlamaConfig,
    LlamaModel,
    ModernBertConfig,
    ModernBertModel,
    NomicBertConfig,
    NomicBertModel,
    PreTrainedTokenizerFast,
    RobertaConfig,
    RobertaModel,
    XLMRobertaConfig,
    XLMRobertaModel,
)

from lmk_rag.config import LandmarkConfig
from lmk_rag.encoder import LandmarkEncoder
from lmk_rag.queries import in_parts
from lmk_rag.types import DocumentEmbedding, QueryEmbedding

# The same examples every time; a busy machine is no failure; no fixture here keeps state.
settings.register_profile(
    "suite",
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
settings.load_profile("suite")

CORPUS = [
    "The pump of station V-7 stops when the valve closes, and nobody restarts the pump now.",
    "Write between the parts; then leave the rest of it alone: that's all we don't know.",
    "A text of medium length with some words. Long text with many words, padding test words.",
    "one two three four five six seven eight nine ten alpha beta gamma delta plain neighbour text",
    "def encode(text):\n\treturn [token for token in text.split() if token]\n",
    "Größe, café, naïve, Ωμέγα, Жизнь, שלום, 日本 字 価格, 🚀☕",
    "Real text about pumps! Is it? Yes... it is 3.14 metres (or 7%) long.",
] * 3
BERT_SPECIALS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
XLMR_SPECIALS = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]


def _frame(tokenizer: Tokenizer, first: str, last: str) -> None:
    tokenizer.post_processor = post.TemplateProcessing(
        single=f"{first} $A {last}",
        special_tokens=[(t, tokenizer.token_to_id(t)) for t in (first, last)],
    )


def _wrap(tokenizer: Tokenizer, names: str, specials: list[str], **options):
    roles = dict(zip(names.split(), specials, strict=True))
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, **{f"{k}_token": v for k, v in roles.items()}, **options
    )


def _wordpiece():
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trainer = trainers.WordPieceTrainer(
        vocab_size=400, special_tokens=BERT_SPECIALS, show_progress=False
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.decoder = decoders.WordPiece()
    _frame(tokenizer, "[CLS]", "[SEP]")
    return _wrap(tokenizer, "pad unk cls sep mask", BERT_SPECIALS)


def _byte_level(specials: list[str]) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=500,
        special_tokens=specials,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    return tokenizer


def _modernbert():
    tokenizer = _byte_level(BERT_SPECIALS)
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.add_tokens(["  ", "    "])  # ModernBERT has runs of spaces as added tokens
    _frame(tokenizer, "[CLS]", "[SEP]")
    return _wrap(tokenizer, "pad unk cls sep mask", BERT_SPECIALS)


def _roberta():
    tokenizer = _byte_level(XLMR_SPECIALS)
    sep, cls = (("</s>", tokenizer.token_to_id("</s>")), ("<s>", tokenizer.token_to_id("<s>")))
    tokenizer.post_processor = post.RobertaProcessing(sep, cls, trim_offsets=True)
    return _wrap(tokenizer, "cls pad sep unk mask", XLMR_SPECIALS)


def _gpt2():
    end = "<|endoftext|>"
    tokenizer = _byte_level([end])
    return _wrap(tokenizer, "unk bos eos pad", [end] * 4, padding_side="left")


def _unigram():
    tokenizer = Tokenizer(models.Unigram())
    # Stands in for XLM-R's precompiled character map: NFKC plus clean-up of odd characters.
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Nmt(), normalizers.NFKC(), normalizers.Replace(Regex(" {2,}"), " ")]
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace()]
    )
    trainer = trainers.UnigramTrainer(
        vocab_size=300, special_tokens=XLMR_SPECIALS, unk_token="<unk>", show_progress=False
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    _frame(tokenizer, "<s>", "</s>")
    return _wrap(tokenizer, "cls pad sep unk mask", XLMR_SPECIALS)


def _wordlevel():
    words = sorted({w for t in CORPUS for w, _ in pre_tokenizers.Whitespace().pre_tokenize_str(t)})
    # "SEP" and "</" are words too, so that spelling out is not just a row of unknowns.
    vocab = {word: i for i, word in enumerate([*BERT_SPECIALS, *words, "SEP", "[", "]", "S"])}
    tokenizer = Tokenizer(models.WordLevel(vocab, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    _frame(tokenizer, "[CLS]", "[SEP]")
    return _wrap(tokenizer, "pad unk cls sep mask", BERT_SPECIALS)


def _llama():
    specials = ["<unk>", "<s>", "</s>"]
    bytes_ = [f"<0x{i:02X}>" for i in range(256)]
    letters = sorted(set("▁".join(CORPUS).replace(" ", "▁")) - set("日本🚀☕"))
    vocab = {piece: i for i, piece in enumerate([*specials, *bytes_, *letters, "▁t", "▁th"])}
    merges = [("▁", "t"), ("▁t", "h")]
    tokenizer = Tokenizer(models.BPE(vocab, merges, unk_token="<unk>", byte_fallback=True))
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    tokenizer.add_special_tokens(specials)
    return _wrap(tokenizer, "unk bos eos pad", [*specials, "</s>"], padding_side="left")


BUILDERS = {
    "wordpiece": _wordpiece,
    "modernbert": _modernbert,
    "roberta": _roberta,
    "gpt2": _gpt2,
    "unigram": _unigram,
    "wordlevel": _wordlevel,
    "llama": _llama,
}
_build = functools.cache(lambda name: BUILDERS[name]())

_SIZE = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
}
# model name: its tokenizer and how to build it
ARCHITECTURES = {
    "bert": (
        "wordpiece",
        lambda t: BertModel(BertConfig(vocab_size=len(t), max_position_embeddings=64, **_SIZE)),
    ),
    "roberta": (
        "roberta",
        lambda t: RobertaModel(
            RobertaConfig(vocab_size=len(t), max_position_embeddings=66, pad_token_id=1, **_SIZE)
        ),
    ),
    "modernbert": (
        "modernbert",
        lambda t: ModernBertModel(
            ModernBertConfig(
                vocab_size=len(t),
                max_position_embeddings=256,
                local_attention=16,
                pad_token_id=0,
                cls_token_id=2,
                sep_token_id=3,
                bos_token_id=2,
                eos_token_id=3,
                **_SIZE,
            )
        ),
    ),
    "rope": (
        "unigram",
        lambda t: JinaEmbeddingsV3Model(
            JinaEmbeddingsV3Config(vocab_size=len(t), max_position_embeddings=512, **_SIZE)
        ),
    ),
    "xlm-roberta": (
        "unigram",
        lambda t: XLMRobertaModel(
            XLMRobertaConfig(vocab_size=len(t), max_position_embeddings=66, pad_token_id=1, **_SIZE)
        ),
    ),
    "eurobert": (
        "modernbert",
        lambda t: EuroBertModel(
            EuroBertConfig(vocab_size=len(t), max_position_embeddings=256, pad_token_id=0, **_SIZE)
        ),
    ),
    "nomic": (
        "wordpiece",
        lambda t: NomicBertModel(
            NomicBertConfig(vocab_size=len(t), max_position_embeddings=256, **_SIZE)
        ),
    ),
    "gte": (
        "wordpiece",
        lambda t: GteModel(GteConfig(vocab_size=len(t), max_position_embeddings=256, **_SIZE)),
    ),
    "decoder": (
        "gpt2",
        lambda t: LlamaModel(
            LlamaConfig(
                vocab_size=len(t),
                max_position_embeddings=256,
                pad_token_id=0,
                bos_token_id=0,
                eos_token_id=0,
                **_SIZE,
            )
        ),
    ),
}


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)  # models this small only wait for their threads


@pytest.fixture(scope="session")
def build_tokenizer() -> Callable[[str], PreTrainedTokenizerFast]:
    """One of the toy tokenizers, by name; not to be modified."""
    return _build


@pytest.fixture(params=sorted(BUILDERS))
def any_tokenizer(request) -> PreTrainedTokenizerFast:
    """Each of the toy tokenizers in turn."""
    return _build(request.param)


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory) -> Callable[[str], Path]:
    """A plain Hugging Face folder of a random model, by architecture; not to be modified."""

    @functools.cache
    def make(name: str) -> Path:
        tokenizer_name, build = ARCHITECTURES[name]
        tokenizer = _build(tokenizer_name)
        folder = tmp_path_factory.mktemp(name)
        torch.manual_seed(0)
        model = build(tokenizer).eval()
        with torch.no_grad():  # a deviation of 0.02 makes all states alike, and pads zero
            for parameter in model.parameters():
                if parameter.ndim == 2:
                    parameter.normal_(0, 0.15)
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        return folder

    return make


@pytest.fixture(scope="session")
def st_folder(model_folder, tmp_path_factory) -> Callable[..., Path]:
    """Write a sentence-transformers folder, by sentence-transformers itself, around a model."""
    import sentence_transformers as st
    from sentence_transformers.sentence_transformer import modules as st_modules

    def make(name: str = "bert", *, pooling: str = "mean", dense=(), normalize=False, **options):
        transformer = st_modules.Transformer(str(model_folder(name)))
        width = 32
        modules = [transformer, st_modules.Pooling(width, pooling_mode=pooling)]
        for out, activation in dense:
            torch.manual_seed(len(modules))
            modules.append(st_modules.Dense(width, out, activation_function=activation))
            width = out
        if normalize:
            modules.append(st_modules.Normalize())
        folder = tmp_path_factory.mktemp(f"st_{name}_{pooling}")
        st.SentenceTransformer(modules=modules, device="cpu", **options).save(
            str(folder), create_model_card=False
        )
        return folder

    return make


@pytest.fixture(scope="session")
def load() -> Callable[..., LandmarkEncoder]:
    """Load an encoder in float32 on the CPU, without the warning about untrained landmarks."""

    def make(folder: Path, config=None, **options) -> LandmarkEncoder:
        options = {"device": "cpu", "dtype": "float32"} | options
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*was not trained with landmarks")
            return LandmarkEncoder(folder, config=config, **options)

    return make


@pytest.fixture(scope="session")
def bert(model_folder, load) -> Iterator[LandmarkEncoder]:
    """A shared BERT encoder: windows of 64 tokens, word boundaries, k = 8."""
    from lmk_rag.config import LandmarkConfig

    with load(model_folder("bert"), LandmarkConfig(granularity=8, overlap=16)) as encoder:
        yield encoder


@pytest.fixture
def waits_for_the_loop(monkeypatch) -> Callable[[type, str], list[bool]]:
    """Let a method, each time it is called, first wait for a turn of the running event loop.

    On the loop's own thread that turn never comes. Returns whether it came, by call.
    """

    def watch(owner: type, name: str) -> list[bool]:
        loop, work = asyncio.get_running_loop(), getattr(owner, name)
        turns: list[bool] = []

        @functools.wraps(work)
        def watched(*args, **kwargs):
            turn = threading.Event()
            loop.call_soon_threadsafe(turn.set)
            turns.append(all(turns) and turn.wait(timeout=30))  # one that never comes is enough
            return work(*args, **kwargs)

        monkeypatch.setattr(owner, name, watched)
        return turns

    return watch


@pytest.fixture(scope="session")
def assert_span_rule() -> Callable[[str, object], None]:
    """The span rule of the field cases, stricter: every character lies in a span."""

    def check(text: str, spans) -> None:
        assert spans.dtype == "int64"
        assert spans.shape == (len(spans), 2)
        starts, ends = spans[:, 0].tolist(), spans[:, 1].tolist()
        assert starts == sorted(starts)
        assert ends == sorted(ends)
        assert starts[0] == 0
        assert ends[-1] == len(text)
        for (_, end), (start, next_end) in itertools.pairwise(spans):
            if start != end:  # then both landmarks fall inside one character
                assert (start, next_end) == (end - 1, end)
        if text:
            assert all(start < end for start, end in spans)

    return check


@pytest.fixture(scope="session")
def edit_json() -> Callable[..., None]:
    """Change keys of a JSON file in place; None removes a key."""

    def edit(path: Path, **changes: object) -> None:
        values = json.loads(path.read_text("utf-8")) if path.exists() else {}
        values = {k: v for k, v in (values | changes).items() if v is not None}
        path.write_text(json.dumps(values), "utf-8")

    return edit


class WordEncoder:
    """A bag of words per landmark of k words: what the store sees of an encoder, no model.

    `encoded` lists every text that was encoded; `refuse` maps a text to the error it raises.
    """

    def __init__(self, *, k: int = 4, dim: int = 32, name: str = "words", batch_tokens: int = 64):
        self.name, self.dim, self.batch_tokens = name, dim, batch_tokens
        self.config = LandmarkConfig(granularity=k)
        self.fingerprint = f"{name}/{k}/{dim}"
        self.encoded: list[str] = []
        self.refuse: dict[str, Exception] = {}

    def encode_documents(self, texts: list[str]) -> list[DocumentEmbedding]:
        for text in texts:
            if text in self.refuse:
                raise self.refuse[text]
        self.encoded += texts
        return [self._embed(text) for text in texts]

    def encode_queries(self, texts: list[str]) -> np.ndarray:
        return np.stack([self._embed(text).vector for text in texts])

    def encode_query_parts(self, texts: list[str]) -> list[QueryEmbedding]:
        return [in_parts(self._embed(text)) for text in texts]

    def _embed(self, text: str) -> DocumentEmbedding:
        k = self.config.granularity
        ends = [match.end() for match in re.finditer(r"\S+\s*", text)] or [len(text)]
        cuts = [0, *ends[k - 1 :: k]]
        cuts += [len(text)] if cuts[-1] < len(text) else []
        pieces = [text[a:b] for a, b in itertools.pairwise(cuts)] or [text]
        raw = np.stack([self._bag(piece) for piece in pieces])
        norms = np.linalg.norm(raw, axis=1)
        mean = raw.mean(axis=0)
        return DocumentEmbedding(
            vector=(mean / np.linalg.norm(mean)).astype(np.float32),
            landmarks=(raw / norms[:, None]).astype(np.float32),
            norms=norms.astype(np.float32),
            spans=np.array([[0, len(text)]] if len(cuts) < 2 else list(itertools.pairwise(cuts))),
            landmark_tokens=np.array([len(piece.split()) for piece in pieces]),
            n_windows=1,
        )

    def _bag(self, piece: str) -> np.ndarray:
        words = re.findall(r"\w+", piece.lower()) or [piece]
        return np.sum([_word_vector(word, self.dim) for word in words], axis=0)


@functools.cache
def _word_vector(word: str, dim: int) -> np.ndarray:
    return np.random.default_rng(zlib.crc32(word.encode())).normal(size=dim)


@pytest.fixture(scope="session")
def word_encoder() -> type[WordEncoder]:
    """The class of a fake encoder for tests of the store."""
    return WordEncoder
