# ruff: noqa: DTZ001  # naive dates are what users store
"""Filters: each class exactly, refusals, and a Python oracle over random metadata.

Where local mode and a server are known to differ: qdrant-client before 1.19 takes True for 1 in
local mode; `Range` on numbers of 2**53 and more compares float64 on a server.
"""

import re
from datetime import date, datetime, timedelta, timezone
from importlib.util import find_spec
from pathlib import PurePosixPath

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lmk_rag import Document, QdrantStore, Retriever
from lmk_rag.errors import UnsupportedFilterError
from lmk_rag.plain_encoder import PlainEncoder
from lmk_rag.store import And, Eq, Exists, In, Not, Or, Range
from lmk_rag.store.filters import FieldIs, translate

ENGINES = ["memory", "server path"] + ["edge"] * (find_spec("qdrant_edge") is not None)


def make_store(metadata, engine="memory", folder=None):
    """One document per entry, with ids "0", "1", ..."""
    encoder = PlainEncoder(
        lambda texts: [[1.0, len(text)] for text in texts],
        lambda texts: [[1.0, 1.0] for _ in texts],
        name="fixed",
    )
    if engine == "edge":
        store = QdrantStore("docs", encoder=encoder, location=folder, engine="edge")
    else:
        store = QdrantStore("docs", encoder=encoder)
    if engine == "server path":
        store._backend = store._backend._inner
    report = store.add(Document(str(i), f"text {i}", m) for i, m in enumerate(metadata))
    assert report.skipped == []
    return store


@pytest.fixture(scope="module", params=ENGINES)
def matches(request, tmp_path_factory):
    """The indexes of the entries that fulfill a filter, by every way to ask."""
    stores = {}

    def select(metadata, where):
        key = repr(metadata)
        if key not in stores:
            stores[key] = make_store(metadata, request.param, tmp_path_factory.mktemp("store"))
        store = stores[key]
        listed = sorted(int(info.id) for info in store.documents(where))
        assert store.count(where) == len(listed)
        for mode in ("exact", "two-stage", "document", "hybrid"):
            hits = Retriever(store).search_documents(
                "text", k=len(metadata), filter=where, mode=mode
            )
            assert sorted(int(hit.document_id) for hit in hits) == listed
        return listed

    yield select
    for store in stores.values():
        store.close()


FIELD_CASE = [
    {"roles": ["admin"], "n": 0, "ok": False},
    {"roles": ["guest"], "n": 5, "ok": True},
]


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        (Eq("roles", "nobody"), []),
        (Eq("n", 0), [0]),
        (Eq("ok", False), [0]),
        (Not(In("roles", ["admin"])), [1]),
        (And(Or(Range("n", gt=3), Eq("ok", False)), In("roles", ["guest"])), [1]),
        (Eq("missing_key", 1), []),
    ],
    ids=repr,
)
def test_field_case_filters_are_applied_exactly(matches, where, expected):
    assert matches(FIELD_CASE, where) == expected


VALUES = [
    {"v": value}
    for value in (0, 1, 0.0, 1.0, 1.5, True, False, "1", "", None, [], [1, "a"], ["a", None], {})
] + [{}]
ALL = list(range(15))


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        (Eq("v", 0), [0, 2]),
        (Eq("v", 1), [1, 3, 11]),
        (Eq("v", 1.0), [1, 3, 11]),
        (Eq("v", 1.5), [4]),
        (Eq("v", True), [5]),
        (Eq("v", False), [6]),
        (Eq("v", "1"), [7]),
        (Eq("v", ""), [8]),
        (Eq("v", "a"), [11, 12]),
        (Eq("v", None), [9, 12]),
        (In("v", [0, "a", True]), [0, 2, 5, 11, 12]),
        (In("v", ("1", "")), [7, 8]),
        (In("v", {None}), [9, 12]),
        (In("v", []), []),
        (Exists("v"), [0, 1, 2, 3, 4, 5, 6, 7, 8, 11, 12, 13]),
        (Not(Exists("v")), [9, 10, 14]),
        (Range("v", gte=1), [1, 3, 4, 11]),
        (Range("v", gt=0, lt=1.5), [1, 3, 11]),
        (Range("v", lte=0), [0, 2]),
        (Range("v", gt=1, lte=1), []),
        (And(), ALL),
        (Or(), []),
        (Not(And()), []),
        (Not(Or()), ALL),
        (And(Eq("v", 0)), [0, 2]),
        (Or(Eq("v", 0), Eq("v", "1")), [0, 2, 7]),
        (And(Not(Eq("v", 0)), Range("v", lt=1)), []),
        (Not(Not(Eq("v", "1"))), [7]),
        (And(Or(), Eq("v", 0)), []),
        (Or(And(), Eq("v", 0)), ALL),
        (Not(Eq("v", 1)), [0, 2, 4, 5, 6, 7, 8, 9, 10, 12, 13, 14]),
    ],
    ids=repr,
)
def test_each_filter_selects_exactly(matches, where, expected):
    assert matches(VALUES, where) == expected


KEYS = [
    {"a": {"b": 1}},
    {"a.b": 1},
    {"a": [{"b": 1}, {"b": 2}]},
    {"two words": 1, "naïve-key_1": 1},
    {"x[0]": 1},
    {"list": [7, 8]},
    {"metadata": 1, "text": "x"},
    {"name/slash": {"in side": {"d.e": 1}}},
]


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        ("a.b", [0]),
        ('"a.b"', [1]),
        ("a[].b", [2]),
        ("a[0].b", [2]),
        ("a[1].b", []),
        ("two words", [3]),
        ("naïve-key_1", [3]),
        ('"x[0]"', [4]),
        ("metadata", [6]),
        ('"name/slash".in side."d.e"', [7]),
        ("document_id", []),
    ],
)
def test_keys_reach_into_nested_objects_and_lists(matches, key, expected):
    assert matches(KEYS, Eq(key, 1)) == expected


def test_a_place_in_a_list_can_be_named(matches):
    assert matches(KEYS, Eq("list[1]", 8)) == [5]
    assert matches(KEYS, Eq("list[0]", 8)) == []
    assert matches(KEYS, Eq("list[]", 8)) == matches(KEYS, Eq("list", 8)) == [5]


@pytest.mark.parametrize("key", ["", "a..b", ".a", "a.", 'a"b', '"a', 'a"b"', "a[x]", "[0]", '""'])
def test_keys_that_name_nothing_are_refused(key):
    with pytest.raises(UnsupportedFilterError, match=r"filter key"):
        translate(Eq(key, 1))


@pytest.mark.parametrize("key", [None, 5, ("a",), "bad \ud800"])
def test_keys_that_are_no_text_are_refused(key):
    for where in (Eq(key, 1), In(key, [1]), Range(key, gt=1), Exists(key)):
        with pytest.raises(UnsupportedFilterError, match="a filter key is"):
            translate(where)


CONVERTED = [
    (date(2024, 1, 2), "2024-01-02"),
    (datetime(2024, 1, 2, 3), "2024-01-02T03:00:00"),
    (np.int64(5), 5),
    (np.float32(0.5), 0.5),
    (np.bool_(True), True),
    (np.str_("x"), "x"),
    (PurePosixPath("a/b"), "a/b"),
    (2**53 + 1, 2**53 + 1),
    (-(2**60), -(2**60)),
]


@pytest.mark.parametrize(("value", "stored"), CONVERTED, ids=repr)
def test_values_are_converted_as_metadata_is(matches, value, stored):
    metadata = [{"v": value}, {"v": stored}, {"v": "other"}, {"v": [stored]}]
    assert matches(metadata, Eq("v", value)) == [0, 1, 3]
    assert matches(metadata, In("v", ["no", value])) == [0, 1, 3]


@pytest.mark.parametrize(
    "value",
    [[1], (1,), {"a": 1}, {1}, b"x", object(), float("nan"), float("inf"), 2**63, "\ud800", 1j],
    ids=lambda value: repr(value).partition(" at 0x")[0],
)
def test_values_that_cannot_be_compared_are_refused_by_name(value):
    shown = re.escape(f"{value!r:.20}")
    for where in (Eq("k", value), In("k", ["fine", value]), Not(Or(Eq("k", value)))):
        with pytest.raises(UnsupportedFilterError, match=shown) as caught:
            translate(where)
        assert "k" in str(caught.value)
        assert isinstance(caught.value, NotImplementedError)


@pytest.mark.parametrize(
    "bounds",
    [
        {},
        {"gt": "a"},
        {"gt": True},
        {"gte": 1, "lt": date(2024, 1, 1)},
        {"gt": float("nan")},
        {"lt": float("inf")},
        {"lt": 2**53},
        {"lt": [1]},
    ],
    ids=repr,
)
def test_ranges_without_comparable_bounds_are_refused(bounds):
    with pytest.raises(UnsupportedFilterError, match=r"Range\('k'\) has"):
        translate(Range("k", **bounds))


@pytest.mark.parametrize("values", ["abc", None, 5])
def test_a_list_of_values_must_be_a_list(values):
    with pytest.raises(UnsupportedFilterError, match="expected a list of values"):
        In("k", values)


@pytest.mark.parametrize("where", [{"a": 1}, "a == 1", None, 5, (Eq("a", 1),), Eq])
def test_what_is_no_filter_is_refused_wherever_it_stands(where):
    for outer in (where, And(where), Or(Eq("a", 1), where), Not(where), And(Not(Or(where)))):
        with pytest.raises(UnsupportedFilterError, match="is no filter"):
            translate(outer)


def test_an_unsupported_filter_never_returns_unfiltered_results():
    with make_store(FIELD_CASE) as store:
        for where in ({"n": 0}, Eq("n", [0]), "n == 0"):
            for ask in (
                lambda where=where: Retriever(store).search("text", filter=where),
                lambda where=where: Retriever(store).search_documents("text", filter=where),
                lambda where=where: store.count(where),
                lambda where=where: list(store.documents(where)),
                lambda where=where: store.delete_where(where),
            ):
                with pytest.raises(UnsupportedFilterError):
                    ask()
        assert store.count() == 2


DATES = [
    {"d": "2024-01-01"},
    {"d": "2024-01-02T00:00:00"},
    {"d": datetime(2024, 1, 2, 12, tzinfo=timezone.utc)},
    {"d": datetime(2024, 1, 2, 12, tzinfo=timezone(timedelta(hours=-13)))},
    {"d": date(2024, 2, 1)},
    {"d": "no date"},
    {"d": 20240102},
    {"d": ["2023-01-01", "2024-01-02"]},
]


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        (Range("d", gte=date(2024, 1, 2)), [1, 2, 3, 4, 7]),
        (Range("d", gt=date(2024, 1, 2)), [2, 3, 4]),
        (Range("d", lt=date(2024, 1, 2)), [0, 7]),
        (Range("d", gte=datetime(2024, 1, 2, 12), lt=date(2024, 1, 3)), [2]),
        (Range("d", gte=datetime(2024, 1, 3, tzinfo=timezone.utc), lt=date(2024, 2, 1)), [3]),
        (Eq("d", date(2024, 2, 1)), [4]),
    ],
    ids=repr,
)
def test_ranges_of_dates_compare_moments(matches, where, expected):
    assert matches(DATES, where) == expected


# ---- random metadata and filters against a Python oracle

SCALARS = st.sampled_from([0, 1, 2, -1, 0.5, 1.0, True, False, "a", "b", "1", "", None])
ENTRIES = SCALARS | st.lists(SCALARS, max_size=3)
METADATA = st.dictionaries(st.sampled_from(["x", "y", "z w"]), ENTRIES, max_size=3)
NESTED = st.builds(lambda flat, inner: flat | {"n": inner}, METADATA, METADATA)
FILTER_KEYS = st.sampled_from(["x", "y", "z w", "n.x", "n.z w"])
LEAVES = (
    st.builds(Eq, FILTER_KEYS, SCALARS)
    | st.builds(In, FILTER_KEYS, st.lists(SCALARS, max_size=3))
    | st.builds(Exists, FILTER_KEYS)
    | st.builds(lambda key, low: Range(key, gte=low), FILTER_KEYS, st.sampled_from([-1, 0, 0.5, 2]))
    | st.builds(
        lambda key, low: Range(key, gt=low, lt=low + 1.5), FILTER_KEYS, st.sampled_from([-1, 0])
    )
)
FILTERS = st.recursive(
    LEAVES,
    lambda inner: (
        st.builds(lambda parts: And(*parts), st.lists(inner, max_size=3))
        | st.builds(lambda parts: Or(*parts), st.lists(inner, max_size=3))
        | st.builds(Not, inner)
    ),
    max_leaves=6,
)
MISSING = object()


def is_number(value):
    return isinstance(value, int | float) and not isinstance(value, bool)


def same(a, b):
    return a == b if is_number(a) and is_number(b) else type(a) is type(b) and a == b


def holds(where, metadata):
    if isinstance(where, And):
        return all(holds(part, metadata) for part in where.filters)
    if isinstance(where, Or):
        return any(holds(part, metadata) for part in where.filters)
    if isinstance(where, Not):
        return not holds(where.filter, metadata)
    entry = metadata
    for part in where.key.split("."):
        entry = entry.get(part, MISSING) if isinstance(entry, dict) else MISSING
    if entry is MISSING:
        return False
    if isinstance(where, Exists):
        return entry is not None and entry != []
    values = entry if isinstance(entry, list) else [entry]
    if isinstance(where, Eq):
        return any(same(value, where.value) for value in values)
    if isinstance(where, In):
        return any(same(value, wanted) for value in values for wanted in where.values)
    return any(
        (where.gt is None or value > where.gt)
        and (where.gte is None or value >= where.gte)
        and (where.lt is None or value < where.lt)
        and (where.lte is None or value <= where.lte)
        for value in values
        if is_number(value)
    )


@settings(max_examples=60, deadline=None)
@given(st.lists(NESTED, min_size=1, max_size=6), st.lists(FILTERS, min_size=1, max_size=6))
def test_random_filters_select_what_plain_python_selects(metadata, filters):
    with make_store(metadata) as store:
        for where in filters:
            expected = [str(i) for i, m in enumerate(metadata) if holds(where, m)]
            assert sorted(info.id for info in store.documents(where)) == expected
            hits = Retriever(store).search_documents("text", k=9, filter=where, mode="exact")
            assert sorted(hit.document_id for hit in hits) == expected


def test_conditions_on_own_fields_do_not_mix_with_metadata():
    with make_store([{"document_id": "1", "segment": 0}, {}]) as store:
        assert [d.id for d in store.documents(Eq("document_id", "1"))] == ["0"]
        assert [d.id for d in store.get(["1"])] == ["1"]
        assert store.count(Eq("segment", 0)) == 1
    assert FieldIs("segment", (0,)).also is None
