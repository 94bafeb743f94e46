"""Talk about a folder of files, with LlamaIndex.

    pip install 'lmk-rag[llama-index,chat]'
    python examples/chat_llama_index.py FOLDER [--store DIR]

    export OPENAI_MODEL=llama3.2 OPENAI_BASE_URL=http://localhost:11434/v1  # for instance Ollama

indexes the folder (again: only what changed) and answers questions with numbered citations.
Follow-up questions are understood; what the files don't tell is answered with "I don't know".
Without OPENAI_MODEL, answers are quotations.
"""

import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager

import chat_common as common
from llama_index.core import Document
from llama_index.core.base.response.schema import StreamingResponse
from llama_index.core.chat_engine import CondensePlusContextChatEngine
from llama_index.core.llms import LLM, ChatMessage
from llama_index.core.memory import ChatMemoryBuffer
from llama_index.core.postprocessor import SimilarityPostprocessor
from llama_index.core.schema import NodeWithScore, TextNode

import lmk_rag
from llama_index.embeddings.lmk import LMKEmbedding
from llama_index.retrievers.lmk import LMKRetriever
from llama_index.retrievers.lmk.base import BEST_END, BEST_START
from llama_index.vector_stores.lmk import LMKVectorStore
from llama_index.vector_stores.lmk.nodes import to_document
from lmk_rag.errors import require_extra


class ModelChat(CondensePlusContextChatEngine):
    """LlamaIndex's chat engine, taken step by step.

    Its `stream_chat` reads the model in a thread: Ctrl-C has to wait for the end of the answer,
    an error shows twice, and a question that failed stays in memory.
    """

    def find(self, question: str) -> list[common.Quote]:
        """Search for the question as it reads without the conversation."""
        alone = self._condense_question(self._memory.get(input=question), question).strip()
        assert isinstance(self._retriever, LMKRetriever)
        store = self._retriever.vector_store.store
        return [quote(node, store) for node in self._get_nodes(alone or question)]

    def answer(self, question: str, quotes: list[common.Quote]) -> Iterator[str]:
        """Let the model answer from the passages."""
        history = self._memory.get(input=question)
        passages = [TextNode(text=q.as_data(i)) for i, q in enumerate(quotes, start=1)]
        response = self._get_response_synthesizer(history, streaming=True).synthesize(
            question, [NodeWithScore(node=node) for node in passages]
        )
        assert isinstance(response, StreamingResponse)
        yield from response.response_gen

    def remember(self, question: str, answer: str) -> None:
        """Note what was said."""
        self._memory.put(ChatMessage(question, role="user"))
        self._memory.put(ChatMessage(answer, role="assistant"))

    def clear(self) -> None:
        """Forget what was said."""
        self.reset()


def quote(found: NodeWithScore, store: lmk_rag.QdrantStore) -> common.Quote:
    """Read a passage of `LMKRetriever`; the nodes of this store are whole files."""
    node = found.node
    assert isinstance(node, TextNode)
    assert node.ref_doc_id is not None
    (file,) = store.get([node.ref_doc_id])
    line = file.text.count("\n", 0, node.start_char_idx) + 1
    best = (node.metadata[BEST_START], node.metadata[BEST_END])
    return common.Quote(file.id, line, node.text, best)


def as_node(file: lmk_rag.Document) -> lmk_rag.Document:
    """Store a file as LlamaIndex's node for it, whole: `LMKRetriever` finds passages in it."""
    return to_document(Document(id_=file.id, text=file.text, metadata=dict(file.metadata)), None)


def model() -> LLM | None:
    """Return the model that the environment names."""
    if (endpoint := common.endpoint()) is None:
        return None
    openai_like = require_extra("llama_index.llms.openai_like", "chat", "talking to a model")
    llm: LLM = openai_like.OpenAILike(
        model=endpoint.model,
        api_base=endpoint.base_url,
        api_key=endpoint.api_key,
        is_chat_model=True,
        max_retries=1,
    )
    return llm


@contextmanager
def open_chat(options: common.Options) -> Iterator[common.Chat]:
    """Index the folder and open a conversation about it."""
    llm = model()
    vector_store = LMKVectorStore(
        collection_name=options.collection("llama_index"),
        embed_model=LMKEmbedding(config=common.CONFIG),
        location=options.store,
    )
    with closing(vector_store):
        common.index(vector_store.store, options, as_node)
        retriever = LMKRetriever(
            vector_store, similarity_top_k=4, per_node=2, passage_tokens=common.PASSAGE_TOKENS
        )
        relevant = SimilarityPostprocessor(similarity_cutoff=options.min_score)
        if llm is None:
            yield common.QuotingChat(
                lambda question: [
                    quote(node, vector_store.store)
                    for node in relevant.postprocess_nodes(retriever.retrieve(question))
                ]
            )
        else:
            memory = ChatMemoryBuffer.from_defaults(token_limit=common.MEMORY_TOKENS)
            yield ModelChat(
                retriever,
                llm,
                memory,
                context_prompt=common.SYSTEM,
                condense_prompt=common.CONDENSE,
                node_postprocessors=[relevant],
            )


if __name__ == "__main__":
    sys.exit(common.main("Talk about a folder of files, with LlamaIndex.", open_chat))
