"""Folders in BEIR form: what is read, what is refused, what a limit keeps."""

import gzip
import json

import pytest

from lmk_rag.errors import ConfigError, InputError
from lmk_rag.evaluation import Answer, limit, load_set
from lmk_rag.types import Document

CORPUS = [
    {"_id": "d1", "title": "", "text": "The pump stops."},
    {"_id": "d2", "title": "Valves", "text": "The valve is red."},
    {"_id": "d3", "text": "Nothing here."},
]
QUERIES = [{"_id": "q1", "text": "pump"}, {"_id": "q2", "text": "red"}, {"_id": "q3", "text": "?"}]
QRELS = "query-id\tcorpus-id\tscore\nq1\td1\t1\nq2\td2\t2\nq2\td1\t0\n"
ANSWERS = "query-id\tcorpus-id\tstart\tend\nq1\td1\t4\t8\nq2\td2\t13\t16\n"


def jsonl(records):
    return "".join(json.dumps(record) + "\n" for record in records)


@pytest.fixture
def folder(tmp_path):
    folder = tmp_path / "pumps"
    folder.mkdir()
    (folder / "corpus.jsonl").write_text(jsonl(CORPUS))
    (folder / "queries.jsonl").write_text(jsonl(QUERIES))
    (folder / "qrels.tsv").write_text(QRELS)
    (folder / "answers.tsv").write_text(ANSWERS)
    return folder


def test_a_folder_is_read_as_it_stands(folder):
    data = load_set(folder)
    assert data.name == data.label == "pumps"
    assert data.documents == (
        Document("d1", "The pump stops."),
        Document("d2", "Valves\nThe valve is red."),
        Document("d3", "Nothing here."),
    )
    assert data.queries == {"q1": "pump", "q2": "red"}
    assert data.qrels == {"q1": {"d1": 1}, "q2": {"d2": 2, "d1": 0}}
    assert data.unjudged == 1


def test_answers_name_characters_of_the_text_behind_its_title(folder):
    data = load_set(folder)
    texts = {document.id: document.text for document in data.documents}
    assert data.answers == (Answer("q1", "d1", 4, 8), Answer("q2", "d2", 20, 23))
    assert [texts[a.document_id][a.start : a.end] for a in data.answers] == ["pump", "red"]


def test_gzip_and_the_qrels_folder_are_read_alike(folder):
    plain = load_set(folder)
    for name in ("corpus", "queries"):
        path = folder / f"{name}.jsonl"
        with gzip.open(f"{path}.gz", "wt", encoding="utf-8") as file:
            file.write(path.read_text())
        path.unlink()
    (folder / "qrels").mkdir()
    (folder / "qrels.tsv").rename(folder / "qrels/test.tsv")
    assert load_set(folder) == plain


def test_a_language_folder_is_named_with_the_set_above_it(folder, tmp_path):
    folder.rename(tmp_path / "en")
    assert load_set(tmp_path / "en").name == f"{tmp_path.name}/en"


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("corpus.jsonl", '{"_id": "d1"}\n', r'corpus.jsonl:1: found .*strings "_id" and "text"'),
        ("corpus.jsonl", '{"_id": 1, "text": "a"}\n', r"corpus.jsonl:1: found"),
        ("corpus.jsonl", "\nnonsense\n", r"corpus.jsonl:2: 'nonsense' is not JSON"),
        ("corpus.jsonl", "[1]\n", r"corpus.jsonl:1: found '\[1\]'"),
        ("corpus.jsonl", "", r"corpus.jsonl is empty"),
        ("corpus.jsonl", jsonl([CORPUS[0], CORPUS[0]]), r"corpus.jsonl:2: the id 'd1' came before"),
        ("corpus.jsonl", '{"_id": "d", "title": 3, "text": ""}\n', r"jsonl:1: the title is 3"),
        ("queries.jsonl", jsonl([QUERIES[0]] * 2), r"queries.jsonl:2: the id 'q1' came before"),
        ("qrels.tsv", "q1\td1\t1\n", r"qrels.tsv:1: found .*expected the header query-id, corpus"),
        ("qrels.tsv", "", r"qrels.tsv is empty; expected the header"),
        ("qrels.tsv", QRELS + "q1\td1\n", r"qrels.tsv:5: found .*expected 3 cells"),
        ("qrels.tsv", QRELS + "q1\td1\tx\n", r"qrels.tsv:5: score is 'x'; expected a whole number"),
        ("qrels.tsv", QRELS + "q1\td9\t1\n", r"qrels.tsv:5: there is no document 'd9'"),
        ("qrels.tsv", QRELS[:25] + "q1\td1\t1\n" * 2, r"qrels.tsv:3: 'q1' and 'd1' were judged"),
        ("qrels.tsv", QRELS + "q9\td1\t1\n", r"qrels.tsv:5: there is no query 'q9'"),
        ("qrels.tsv", QRELS[:25] + "q1\td1\t0\n", r"pumps: the qrels hold no relevant document"),
        ("answers.tsv", ANSWERS + "q1\td1\t3\t99\n", r"'q1' is \[3, 99\) of 'd1', which has 15"),
        ("answers.tsv", ANSWERS + "q1\td1\t3\t3\n", r"answers.tsv: the answer to 'q1' is \[3, 3\)"),
    ],
)
def test_a_malformed_file_is_named_with_its_line(folder, name, text, message):
    (folder / name).write_text(text)
    with pytest.raises(InputError, match=message):
        load_set(folder)


def test_missing_and_doubled_files_are_named(folder):
    with pytest.raises(InputError, match=r"there is no folder .*elsewhere"):
        load_set(folder / "elsewhere")
    (folder / "qrels.tsv").rename(folder / "kept")
    with pytest.raises(InputError, match=r"holds neither qrels.tsv nor qrels/test.tsv"):
        load_set(folder)
    (folder / "kept").rename(folder / "qrels.tsv")
    (folder / "corpus.jsonl.gz").write_bytes(b"")
    with pytest.raises(InputError, match=r"holds both corpus.jsonl and corpus.jsonl.gz"):
        load_set(folder)


def test_a_damaged_gzip_file_is_named(folder):
    data = gzip.compress((folder / "corpus.jsonl").read_bytes())
    (folder / "corpus.jsonl").unlink()
    (folder / "corpus.jsonl.gz").write_bytes(data[:-12])
    with pytest.raises(InputError, match=r"corpus.jsonl.gz can't be read after line"):
        load_set(folder)


def test_a_limit_keeps_the_first_documents_and_queries_they_answer(folder):
    data = load_set(folder)
    assert limit(data) is data
    assert limit(data, documents=3, queries=5) is data
    one = limit(data, documents=1)
    assert [document.id for document in one.documents] == ["d1"]
    assert (one.queries, one.qrels) == ({"q1": "pump"}, {"q1": {"d1": 1}})
    assert one.answers == (Answer("q1", "d1", 4, 8),)
    assert one.label == "pumps (1 of 3 documents, 1 of 2 queries)"
    fewer = limit(data, queries=1)
    assert (len(fewer.documents), list(fewer.queries)) == (3, ["q1"])
    assert limit(limit(data, documents=2), documents=1).whole == (3, 2)


def test_a_limit_that_leaves_no_query_is_refused(folder):
    (folder / "qrels.tsv").write_text(QRELS.replace("q1\td1\t1\n", ""))
    (folder / "answers.tsv").unlink()
    with pytest.raises(InputError, match="no query has a relevant document among the first 1"):
        limit(load_set(folder), documents=1)
    with pytest.raises(ConfigError, match="queries is 0; expected"):
        limit(load_set(folder), queries=0)
