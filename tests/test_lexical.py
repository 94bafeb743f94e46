"""Words of every script, and BM25's share of a text as a sparse vector."""

import itertools
import subprocess
import sys
import zlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmk_rag.lexical import Bm25, WordRule, query_vector, terms, words


def listed(text):
    return [word for word, _ in words(text)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("The pump, again: THE PUMP!", ["the", "pump", "again", "the", "pump"]),
        ("don't restart AB-1234 at 3.14", ["don", "t", "restart", "ab", "1234", "at", "3", "14"]),
        ("", []),
        (" ...?! 🚀 — ", []),
        ("____ _", []),
        # Case and compatibility forms are one word.
        ("Straße STRASSE straße", ["strasse"] * 3),
        ("ｆｕｌｌ ﬁle １２３", ["full", "file", "123"]),
        ("caf\u00e9 cafe\u0301 CAF\u00c9", ["caf\u00e9"] * 3),
        ("Ωμέγα Жизнь שלום", ["ωμέγα", "жизнь", "שלום"]),
        ("हिन्दी भाषा", ["हिन्दी", "भाषा"]),  # vowel signs are within words
    ],
)
def test_words_are_runs_of_letters_marks_and_digits(text, expected):
    assert listed(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("snake_case", ["snake_case", "snake", "case"]),
        ("__init__", ["__init__", "init"]),
        ("camelCase", ["camelcase", "camel", "case"]),
        ("XMLHttpRequest", ["xmlhttprequest", "xml", "http", "request"]),
        ("parseHTML_file", ["parsehtml_file", "parse", "html", "file"]),
        ("toUTF8", ["toutf8", "to", "utf8"]),
        ("größeÄndern", ["größeändern".replace("ß", "ss"), "grösse", "ändern"]),
        ("USA Pump P7 sha256", ["usa", "pump", "p7", "sha256"]),  # one part: once
    ],
)
def test_an_identifier_is_a_word_and_so_are_its_parts(text, expected):
    assert listed(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("北京大学", ["北京", "京大", "大学"]),
        ("水。火", ["水", "火"]),
        ("カーネル", ["カー", "ーネ", "ネル"]),
        ("日本語のテスト", ["日本", "本語", "語の", "のテ", "テス", "スト"]),
        ("한국어 처리", ["한국", "국어", "처리"]),
        ("ที่นี่ไทย", ["ที่นี่", "นี่ไ", "ไท", "ทย"]),  # a letter with its marks is one character
        ("iPhone手机v2", ["iphone", "i", "phone", "手机", "v2"]),
    ],
)
def test_scripts_without_spaces_give_pairs_of_characters(text, expected):
    assert listed(text) == expected


EIGHT, NINE = Bm25(1.2, 0.75, 8), Bm25(1.2, 0.75, 9)


def test_each_word_knows_where_it_begins():
    text = "The tool parseHTML: 北京大学 v2"
    found = [(word, text[start : start + 2]) for word, start in words(text)]
    assert found == [
        ("the", "Th"), ("tool", "to"), ("parsehtml", "pa"), ("parse", "pa"), ("html", "pa"),
        ("北京", "北京"), ("京大", "京大"), ("大学", "大学"), ("v2", "v2"),
    ]  # fmt: skip
    assert terms(text).starts.tolist() == [start for _, start in words(text)]


def test_the_values_are_those_of_bm25():
    text = "pump valve pump filter"  # four terms, where eight are usual
    vector = terms(text).vector(0, len(text), EIGHT, pairs=False)
    norm = 1 - 0.75 + 0.75 * 4 / 8
    by_index = dict(zip(vector.indices.tolist(), vector.values.tolist(), strict=True))
    assert by_index == {
        zlib.crc32(b"pump"): pytest.approx(2 * 2.2 / (2 + 1.2 * norm)),
        zlib.crc32(b"valve"): pytest.approx(1 * 2.2 / (1 + 1.2 * norm)),
        zlib.crc32(b"filter"): pytest.approx(1 * 2.2 / (1 + 1.2 * norm)),
    }
    assert (vector.indices.dtype, vector.values.dtype) == (np.uint32, np.float32)


def test_a_collection_counts_segments_and_documents_by_rules_of_their_own():
    assert WordRule() == WordRule(Bm25(0.9, 0.6, 512), Bm25(2.0, 0.82, 8_192), pairs=True)
    found = terms("pump pump")  # two terms, where eight are usual
    values = [
        found.vector(0, 9, Bm25(k1, b, 8), pairs=False).values.tolist()
        for k1, b in ((0.9, 0.6), (2.0, 0.82))
    ]
    assert values == [
        [pytest.approx(2 * 1.9 / (2 + 0.9 * (0.4 + 0.6 * 2 / 8)))],
        [pytest.approx(2 * 3.0 / (2 + 2.0 * (0.18 + 0.82 * 2 / 8)))],
    ]


def test_a_query_counts_its_words():
    vector = query_vector("Pump? The pump!", pairs=False)
    by_index = dict(zip(vector.indices.tolist(), vector.values.tolist(), strict=True))
    assert by_index == {zlib.crc32(b"pump"): 2, zlib.crc32(b"the"): 1}


PUMP, VALVE, THE = (zlib.crc32(word) for word in (b"pump", b"valve", b"the"))


def pair(first, second):
    return (first * 0x9E3779B1 + second) % 2**32


def test_words_next_to_each_other_are_a_term_too():
    text = "pump valve pump valve"  # four words, where eight are usual: pairs add no length
    vector = terms(text).vector(0, len(text), EIGHT, pairs=True)
    norm = 1 - 0.75 + 0.75 * 4 / 8
    twice, once = (n * 2.2 / (n + 1.2 * norm) for n in (2, 1))
    assert dict(zip(vector.indices.tolist(), vector.values.tolist(), strict=True)) == {
        PUMP: pytest.approx(twice),
        VALVE: pytest.approx(twice),
        pair(PUMP, VALVE): pytest.approx(twice),
        pair(VALVE, PUMP): pytest.approx(once),
    }
    assert np.all(vector.indices[1:] > vector.indices[:-1])


def test_a_pair_counts_half_in_a_query():
    vector = query_vector("The pump! The pump valve", pairs=True)
    assert dict(zip(vector.indices.tolist(), vector.values.tolist(), strict=True)) == {
        THE: 2,
        PUMP: 2,
        VALVE: 1,
        pair(THE, PUMP): 1,
        pair(PUMP, THE): 0.5,
        pair(PUMP, VALVE): 0.5,
    }
    lone = query_vector("pump", pairs=True)
    assert (lone.indices.tolist(), lone.values.tolist()) == ([PUMP], [1])


def test_an_identifier_and_its_parts_stand_next_to_each_other():
    found = [zlib.crc32(word) for word in (b"parsehtml", b"parse", b"html", b"tool")]
    pairs = {pair(*both) for both in itertools.pairwise(found)}
    assert set(query_vector("parseHTML tool", pairs=True).indices.tolist()) == {*found, *pairs}


@pytest.mark.parametrize("text", ["", "pump"])
def test_less_than_two_words_make_no_pair(text):
    found = terms(text)
    alone, paired = (found.vector(0, 9, NINE, pairs=pairs) for pairs in (False, True))
    assert alone.indices.tolist() == paired.indices.tolist()


def test_a_part_of_a_text_has_the_pairs_within_it():
    found = terms("the pump valve")
    vector = found.vector(4, 14, NINE, pairs=True)
    assert set(vector.indices.tolist()) == {PUMP, VALVE, pair(PUMP, VALVE)}


def test_words_with_one_hash_count_as_one_term():
    assert zlib.crc32(b"plumless") == zlib.crc32(b"buckeroo")
    vector = query_vector("plumless buckeroo plumless", pairs=False)
    assert (len(vector), vector.values.tolist()) == (1, [3])


def test_a_part_of_a_text_has_the_words_that_begin_in_it():
    text = "one two three two"
    found = terms(text)
    first, second = (found.vector(a, b, NINE, pairs=False) for a, b in ((0, 10), (10, len(text))))
    assert set(first.indices) == {zlib.crc32(w) for w in (b"one", b"two", b"three")}
    assert second.indices.tolist() == [zlib.crc32(b"two")]


@pytest.mark.parametrize("text", ["", " \n", "?!", "🚀"])
def test_a_text_without_words_has_an_empty_vector(text):
    assert (
        len(query_vector(text, pairs=False))
        == len(terms(text).vector(0, 9, NINE, pairs=False))
        == 0
    )


@given(st.text())
def test_indices_rise_and_values_are_positive_and_bounded(text):
    found = terms(text)
    vector = found.vector(0, len(text), NINE, pairs=False)
    assert np.all(vector.indices[1:] > vector.indices[:-1])
    assert np.all((vector.values > 0) & (vector.values < 2.2))
    assert np.all(np.diff(found.starts) >= 0)
    assert set(vector.indices) == set(query_vector(text, pairs=False).indices)
    assert all(word and not word.isspace() for word in listed(text))


@given(st.text(alphabet="aB_é水ไท 1"), st.integers(0, 30))
def test_the_parts_of_a_text_have_all_its_words(text, cut):
    found = terms(text)
    parts = (
        found.vector(0, cut, NINE, pairs=False),
        found.vector(cut, len(text) + 1, NINE, pairs=False),
    )
    both = set(parts[0].indices) | set(parts[1].indices)
    assert both == set(found.vector(0, len(text) + 1, NINE, pairs=False).indices)


def test_another_process_makes_the_same_vector():
    code = (
        "from lmk_rag.lexical import Bm25, terms; v = terms('Größe parseHTML 北京大学')"
        ".vector(0, 99, Bm25(1.2, 0.75, 9), pairs=True); "
        "print(v.indices.tolist(), v.values.tolist())"
    )
    vector = terms("Größe parseHTML 北京大学").vector(0, 99, NINE, pairs=True)
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == f"{vector.indices.tolist()} {vector.values.tolist()}"
