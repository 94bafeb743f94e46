# ruff: noqa: DTZ001  # naive dates are what users store
"""The rule for metadata: kept, converted or refused by name; field case FR-O-23."""

import enum
import json
import uuid
from collections import UserDict
from datetime import date, datetime, time, timedelta, timezone
from pathlib import Path, PurePosixPath

import numpy as np
import pytest

from lmk_rag import Document, QdrantStore, Retriever
from lmk_rag.errors import InputError
from lmk_rag.store.metadata import canonical_json, clean_metadata


class Color(enum.Enum):
    RED = "red"


class Level(enum.IntEnum):
    HIGH = 3


class Word(str):
    __slots__ = ()

    def __str__(self):
        return "something else"


KEPT = [
    "text",
    "",
    "naïve 日本 \x00 \u2028",
    True,
    0,
    -(2**63),
    2**63 - 1,
    0.5,
    1e300,
    None,
    [],
    {},
    [1, [None, {"a": []}]],
    {"a": {"b": {"c": 1}}},
]
CONVERTED = [
    ((1, ("a",)), [1, ["a"]]),
    (np.float32(0.5), 0.5),
    (np.float64(0.1), 0.1),
    (np.int64(7), 7),
    (np.bool_(True), True),
    (np.str_("x"), "x"),
    (np.datetime64("2024-01-02"), "2024-01-02"),
    (np.datetime64("2024-01-02T03:04:05"), "2024-01-02T03:04:05"),
    (np.datetime64("2024-01-02T03:04:05.000000000"), "2024-01-02T03:04:05"),
    (date(2024, 1, 2), "2024-01-02"),
    (datetime(2024, 1, 2, 3, 4), "2024-01-02T03:04:00"),
    (datetime(2024, 1, 2, tzinfo=timezone(timedelta(hours=2))), "2024-01-02T00:00:00+02:00"),
    (uuid.UUID(int=5), "00000000-0000-0000-0000-000000000005"),
    (PurePosixPath("a/b"), "a/b"),
    (Color.RED, "red"),
    (Level.HIGH, 3),
    (Word("word"), "word"),
    (UserDict(a=1), {"a": 1}),
]
REFUSED = [
    ({"a", "b"}, "set"),
    (b"\xff", "bytes"),
    (bytearray(b"x"), "bytearray"),
    (float("nan"), "nan"),
    (float("-inf"), "-inf"),
    (np.float32("nan"), "nan"),
    (2**63, "64 bits"),
    (np.uint64(2**64 - 1), "64 bits"),
    ("bad \ud800", "lone surrogate at character 4"),
    (Path("bad\udc80"), "lone surrogate"),
    (1j, "complex"),
    (np.zeros(2), "ndarray"),
    (np.datetime64("NaT"), "NaT"),
    (np.datetime64("2024-01-02T03:04:05.000000001"), "microsecond"),
    (np.timedelta64(5, "ns"), "timedelta64"),
    (timedelta(1), "timedelta"),
    (time(1), "time"),
    (object(), "object"),
    (iter([1]), "iterator"),
]


@pytest.mark.parametrize("value", KEPT, ids=repr)
def test_json_values_are_kept(value):
    cleaned = clean_metadata({"key": value})["key"]
    assert cleaned == value
    assert type(cleaned) is type(value)


@pytest.mark.parametrize(("value", "expected"), CONVERTED, ids=lambda v: repr(v)[:40])
def test_values_with_one_reading_are_converted(value, expected):
    cleaned = clean_metadata({"key": value})["key"]
    assert cleaned == expected
    assert type(cleaned) is type(expected)


@pytest.mark.parametrize(
    # Names that every process gives alike: no address, no order of a set.
    ("value", "reason"),
    REFUSED,
    ids=lambda v: v[:40] if isinstance(v, str) else type(v).__name__,
)
def test_values_that_would_come_back_as_something_else_are_refused_by_key(value, reason):
    for metadata, path in (
        ({"fine": 1, "key": value}, r"metadata\['key'\]"),
        ({"outer": {"key": [0, value]}}, r"metadata\['outer'\]\['key'\]\[1\]"),
    ):
        with pytest.raises(InputError, match=path) as caught:
            clean_metadata(metadata)
        assert reason in str(caught.value)


@pytest.mark.parametrize("key", [1, None, ("a",), "", "bad \ud800"])
def test_keys_that_are_no_text_are_refused(key):
    with pytest.raises(InputError, match="key"):
        clean_metadata({key: 1})
    with pytest.raises(InputError, match=r"metadata\['outer'\] has the key"):
        clean_metadata({"outer": {key: 1}})


@pytest.mark.parametrize("metadata", [None, [], "text", 5])
def test_metadata_that_is_no_mapping_is_refused(metadata):
    with pytest.raises(InputError, match="expected a dict"):
        clean_metadata(metadata)


def test_a_dict_that_holds_itself_is_refused():
    loop = {}
    loop["self"] = [loop]
    with pytest.raises(InputError, match="nested more than 32 levels deep"):
        clean_metadata(loop)


def test_the_copy_shares_nothing_with_the_original():
    original = {"a": [1, {"b": 2}]}
    cleaned = clean_metadata(original)
    cleaned["a"][1]["b"] = 3
    assert original == {"a": [1, {"b": 2}]}


def test_canonical_json_does_not_depend_on_the_order_of_keys():
    assert canonical_json({"b": 1, "a": {"d": 1, "c": 2}}) == '{"a":{"c":2,"d":1},"b":1}'
    assert canonical_json({"a": {"c": 2, "d": 1}, "b": 1}) == '{"a":{"c":2,"d":1},"b":1}'


FIELD_CASE = {
    "when": datetime(2024, 1, 2),
    "score": np.float32(0.5),
    "path": Path("x"),
    "nested": {"k": [1, None]},
}


def test_field_case_metadata_is_stored_by_the_rule_and_refused_by_key(word_encoder):
    with QdrantStore("docs", encoder=word_encoder()) as store:
        report = store.add(
            [
                Document("fine", "about pumps", FIELD_CASE),
                Document("tags", "about pumps", FIELD_CASE | {"tags": {"a", "b"}}),
                Document("blob", "about pumps", FIELD_CASE | {"blob": b"\xff"}),
                Document("nan", "about pumps", FIELD_CASE | {"nan": float("nan")}),
            ]
        )
        assert report.added == ["fine"]
        assert [(s.document_id, s.is_error) for s in report.skipped] == [
            ("tags", True),
            ("blob", True),
            ("nan", True),
        ]
        for skipped, key in zip(report.skipped, ("tags", "blob", "nan"), strict=True):
            assert f"metadata[{key!r}]" in skipped.reason
        assert store.count() == 1
    assert FIELD_CASE["when"] == datetime(2024, 1, 2)
    assert type(FIELD_CASE["score"]) is np.float32


def test_what_comes_back_is_json_and_separate_every_time(word_encoder):
    expected = {
        "when": "2024-01-02T00:00:00",
        "score": 0.5,
        "path": "x",
        "nested": {"k": [1, None]},
    }
    encoder = word_encoder(k=2)
    with QdrantStore("docs", encoder=encoder) as store:
        store.add([Document("a", "pumps run. Valves close. Pumps stop.", FIELD_CASE)])
        retriever = Retriever(store)
        passages = retriever.search("pumps", per_document=3, passage_tokens=1)
        assert len(passages) == 3
        (hit,), (info,), (document,) = (
            retriever.search_documents("pumps"),
            list(store.documents()),
            store.get(["a"]),
        )
        everything = [p.metadata for p in passages]
        everything += [hit.metadata, info.metadata, document.metadata]
        for metadata in everything:
            assert json.loads(json.dumps(metadata)) == expected
            metadata["nested"]["k"].append("changed")  # no other may see this
        assert store.get(["a"])[0].metadata == expected
        assert json.dumps(encoder.encode_queries(["x"])[0].tolist())


@pytest.mark.parametrize("metadata", [{}, {"a": {}, "b": [], "c": {"d": {}, "e": [{}]}, "n": None}])
def test_empty_values_come_back_as_they_were(word_encoder, tmp_path, metadata):
    for _ in range(2):  # the second time from disk
        with QdrantStore("docs", encoder=word_encoder(), location=tmp_path) as store:
            store.add([Document("a", "about pumps", metadata)])
            assert store.get(["a"])[0].metadata == metadata
            assert [info.metadata for info in store.documents()] == [metadata]
            assert Retriever(store).search("pumps")[0].metadata == metadata
