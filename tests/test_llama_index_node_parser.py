"""`LMKNodeParser`: beyond the conformance suite, what is ours about it."""

import json
import uuid

import numpy as np
import pytest
from llama_index.core import VectorStoreIndex
from llama_index.core.node_parser.node_utils import default_id_func
from llama_index.core.schema import Document, MetadataMode, TextNode
from llama_index.core.storage.docstore.utils import doc_to_json, json_to_doc

from llama_index.embeddings.lmk import LMKEmbedding
from llama_index.embeddings.lmk.landmarks import KEY, unpack
from llama_index.node_parser.lmk import LMKNodeParser
from llama_index.node_parser.lmk.base import stable_id
from lmk_rag import LandmarkChunker
from lmk_rag.errors import InputError

pytestmark = pytest.mark.filterwarnings("ignore:.*was not trained with landmarks")

REPEATED = "Restart the pump now.\n" * 12


@pytest.fixture(scope="module")
def embedding(model_folder) -> LMKEmbedding:
    config = {"granularity": 4, "overlap": 16}
    return LMKEmbedding(
        model_name=model_folder("bert"), config=config, device="cpu", dtype="float32"
    )


@pytest.fixture
def parser(embedding) -> LMKNodeParser:
    return LMKNodeParser(embed_model=embedding, chunk_size=4)


def test_nodes_are_the_cores_chunks(parser, embedding):
    chunks = LandmarkChunker(embedding.encoder, chunk_tokens=4).chunk(REPEATED)
    nodes = parser([Document(text=REPEATED)])
    assert [(n.text, n.start_char_idx, n.end_char_idx) for n in nodes] == [
        (c.text, c.start, c.end) for c in chunks
    ]
    assert np.array_equal(
        np.float32([n.embedding for n in nodes]), np.stack([c.vector for c in chunks])
    )


def test_repeated_text_keeps_its_own_places(parser):
    """LlamaIndex finds a node's place by searching for its text: all would move forward."""
    nodes = parser([Document(text=REPEATED)])
    starts = [node.start_char_idx for node in nodes]
    assert len(starts) >= 12
    assert starts == sorted(set(starts))
    assert starts[0] == 0
    assert nodes[-1].end_char_idx == len(REPEATED)
    ends = [node.end_char_idx for node in nodes]
    assert starts[1:] == ends[:-1]


@pytest.mark.parametrize(
    "text",
    [
        "if x:\n\tfor y in z:\n\t\tprint( y )\n\n\n    # end  \n",
        "| part | qty |\n|---|---|\n| bolt M6 | 12 |\n| nut  M6 | 12 |\n",
        "<table><tr><td>A&amp;B</td>\n<td>&nbsp;7</td></tr></table>",
    ],
)
def test_pieces_are_verbatim(parser, text):
    nodes = parser([Document(text=text)])
    assert "".join(node.text for node in nodes) == text


def test_metadata_are_not_encoded(embedding):
    """However long they are; and neither excluded keys nor ours reach a model."""
    parser = LMKNodeParser(embed_model=embedding, chunk_size=8)
    text = "Valve V-7 closes at 80 C and opens again at 72 C."
    bare = parser([Document(id_="x", text=text)])
    told = parser(
        [
            Document(
                id_="x",
                text=text,
                metadata={"source": "x" * 3000, "lang": "en"},
                excluded_embed_metadata_keys=["source"],
            )
        ]
    )
    assert [node.text for node in told] == [node.text for node in bare]
    assert [node.embedding for node in told] == [node.embedding for node in bare]
    assert told[0].get_content(MetadataMode.EMBED) == f"lang: en\n\n{told[0].text}".strip()
    assert KEY not in told[0].get_content(MetadataMode.LLM)
    assert told[0].metadata == {"source": "x" * 3000, "lang": "en", KEY: told[0].metadata[KEY]}


def test_landmarks_stay_out_of_relations(parser):
    for node in parser([Document(text=REPEATED, metadata={"lang": "en"})]):
        assert all(KEY not in info.metadata for info in node.relationships.values())


def test_landmarks_survive_json(parser, embedding):
    document = Document(text=REPEATED)
    core = embedding.encoder.encode_documents([REPEATED])[0]
    nodes = LMKNodeParser(embed_model=embedding, chunk_size=12)([document])
    first = 0
    for node in nodes:
        back = json_to_doc(json.loads(json.dumps(doc_to_json(node))))
        found = unpack(back, embedding.encoder.fingerprint)
        own = slice(first, first + found.n_landmarks)
        first += found.n_landmarks
        np.testing.assert_allclose(found.landmarks, core.landmarks[own], atol=1e-3)
        np.testing.assert_allclose(np.linalg.norm(found.landmarks, axis=1), 1, atol=1e-6)
        assert np.array_equal(found.norms, core.norms[own])
        assert np.array_equal(found.spans + node.start_char_idx, core.spans[own])
        assert np.array_equal(found.landmark_tokens, core.landmark_tokens[own])
        assert np.array_equal(found.vector, np.float32(node.embedding))
    assert first == core.n_landmarks


def test_a_node_that_lost_its_embedding_has_the_mean_of_its_landmarks(parser, embedding):
    for node in parser([Document(text=REPEATED)]):
        expected, node.embedding = node.embedding, None
        found = unpack(node, embedding.encoder.fingerprint)
        np.testing.assert_allclose(found.vector, expected, atol=1e-3)


@pytest.mark.parametrize(
    ("config", "landmarks", "times"), [(None, 16, 2.1), ({"granularity": 32}, 8, 1.2)]
)
def test_landmarks_take_a_kilobyte_each_at_384_wide(config, landmarks, times):
    embedding = LMKEmbedding(config=config)
    (node,) = LMKNodeParser(embed_model=embedding)([Document(text="The valve closes now. " * 50)])
    n = unpack(node, embedding.encoder.fingerprint).n_landmarks
    assert n == landmarks
    assert len(node.metadata[KEY]) / n < 1_080
    assert len(node.metadata[KEY]) < times * len(json.dumps(node.embedding))


def test_landmarks_of_another_encoder_are_refused(parser):
    (node, *_) = parser([Document(text=REPEATED)])
    with pytest.raises(InputError, match="landmarks of the encoder"):
        unpack(node, "another")
    node.metadata[KEY] = "2:?"
    with pytest.raises(InputError, match="unknown form"):
        unpack(node, "another")


def test_landmarks_of_a_text_changed_since_are_dropped(parser, embedding):
    (node, *_) = parser([Document(text=REPEATED)])
    node.text = node.text.upper()
    assert unpack(node, embedding.encoder.fingerprint) is None


def test_landmarks_can_be_left_out(embedding):
    parser = LMKNodeParser(embed_model=embedding, chunk_size=8, include_landmarks=False)
    (node, *_) = parser([Document(text=REPEATED, metadata={"lang": "en"})])
    assert node.metadata == {"lang": "en"}
    assert node.excluded_llm_metadata_keys == []
    assert len(node.embedding) == 32


def test_the_embedding_model_leaves_parsed_nodes_as_they_are(parser, embedding):
    nodes = parser([Document(text=REPEATED)])
    before = [node.embedding for node in nodes]
    other = TextNode(text="x")
    embedding([*nodes, other])
    assert [node.embedding for node in nodes] == before
    assert other.embedding is not None


def test_ids_are_uuids_of_document_and_place(parser):
    (first, second, *_) = parser([Document(id_="reports/2024 q1.txt", text=REPEATED)])
    assert uuid.UUID(first.node_id).version == 5
    assert first.node_id == stable_id(0, Document(id_="reports/2024 q1.txt"))
    assert second.node_id == stable_id(1, Document(id_="reports/2024 q1.txt"))
    assert first.node_id != parser([Document(id_="other", text=REPEATED)])[0].node_id


def test_an_id_func_of_the_users_is_used(embedding):
    def numbered(i, doc):
        return f"{doc.id_}#{i}"

    parser = LMKNodeParser(embed_model=embedding, chunk_size=4, id_func=numbered)
    nodes = parser([Document(id_="a", text=REPEATED)])
    assert [node.node_id for node in nodes[:2]] == ["a#0", "a#1"]
    with pytest.raises(ValueError, match="'numbered' can't be read from a dict"):
        LMKNodeParser.from_dict(parser.to_dict())
    assert LMKNodeParser.from_dict(parser.to_dict(), id_func=numbered).id_func is numbered
    random = LMKNodeParser(embed_model=embedding, id_func=default_id_func)
    assert LMKNodeParser.from_dict(random.to_dict()).id_func is default_id_func
    assert LMKNodeParser(embed_model=embedding, id_func=None).id_func is stable_id


def test_metadata_and_relations_only_if_wanted(embedding):
    parser = LMKNodeParser(
        embed_model=embedding, chunk_size=4, include_metadata=False, include_prev_next_rel=False
    )
    nodes = parser([Document(id_="a", text=REPEATED, metadata={"lang": "en"})])
    assert all(list(node.metadata) == [KEY] for node in nodes)
    assert all(node.prev_node is None and node.next_node is None for node in nodes)
    assert {node.ref_doc_id for node in nodes} == {"a"}


def test_nodes_of_two_documents_are_not_neighbors(parser):
    nodes = parser([Document(id_="a", text=REPEATED), Document(id_="b", text=REPEATED)])
    last = [node for node in nodes if node.ref_doc_id == "a"][-1]
    first = next(node for node in nodes if node.ref_doc_id == "b")
    assert (last.next_node, first.prev_node) == (None, None)


def test_nodes_can_be_parsed_again(embedding):
    """Offsets then count in the node that was parsed, and the source stays the document."""
    big = LMKNodeParser(embed_model=embedding, chunk_size=16)
    small = LMKNodeParser(embed_model=embedding, chunk_size=4)
    outer = big([Document(id_="a", text=REPEATED)])
    inner = small(outer)
    assert {node.ref_doc_id for node in inner} == {"a"}
    assert len({node.node_id for node in inner}) == len(inner) > len(outer)
    assert "".join(node.text for node in inner) == REPEATED


def test_wrong_settings_are_refused(embedding):
    with pytest.raises(ValueError, match="chunk_size"):
        LMKNodeParser(embed_model=embedding, chunk_size=0)
    with pytest.raises(ValueError, match="chunk_overlap"):
        LMKNodeParser(embed_model=embedding, chunk_overlap=5)


def test_it_serves_other_vector_stores_too(embedding):
    parser = LMKNodeParser(embed_model=embedding, chunk_size=8, include_landmarks=False)
    index = VectorStoreIndex.from_documents(
        [Document(id_="a", text=REPEATED)], transformations=[parser], embed_model=embedding
    )
    (found,) = index.as_retriever(similarity_top_k=1).retrieve("pump")
    assert REPEATED[found.node.start_char_idx : found.node.end_char_idx] == found.text
