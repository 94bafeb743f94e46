"""Talk about a folder of files, with LangChain.

    pip install 'lmk-rag[langchain,chat]'
    python examples/chat_langchain.py FOLDER [--store DIR]

    export OPENAI_MODEL=llama3.2 OPENAI_BASE_URL=http://localhost:11434/v1  # for instance Ollama

indexes the folder (again: only what changed) and answers questions with numbered citations.
Follow-up questions are understood; what the files don't tell is answered with "I don't know".
Without OPENAI_MODEL, answers are quotations.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager

import chat_common as common
from langchain_core.documents import Document
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import (
    AIMessage,
    BaseMessage,
    HumanMessage,
    get_buffer_string,
    trim_messages,
)
from langchain_core.messages.utils import count_tokens_approximately
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate, MessagesPlaceholder
from langchain_core.runnables import Runnable

from langchain_lmk import LMKEmbeddings, LMKRetriever, LMKVectorStore
from lmk_rag.errors import require_extra


class ModelChat:
    """Two chains around a retriever: one makes a question stand alone, one answers it."""

    def __init__(self, passages: Runnable[str, list[Document]], model: BaseChatModel) -> None:
        self._passages = passages
        self._condense = (
            ChatPromptTemplate.from_template(common.CONDENSE) | model | StrOutputParser()
        )
        prompt = ChatPromptTemplate.from_messages(
            [("system", common.SYSTEM), MessagesPlaceholder("history"), ("human", "{question}")]
        )
        self._answer = prompt | model | StrOutputParser()
        self._history: list[BaseMessage] = []
        self._recent = trim_messages(
            strategy="last",
            max_tokens=common.MEMORY_TOKENS,
            token_counter=count_tokens_approximately,
            start_on="human",
        )

    def find(self, question: str) -> list[common.Quote]:
        """Search for the question as it reads without the conversation."""
        if history := self._recent.invoke(self._history):
            said = get_buffer_string(history)
            alone = self._condense.invoke({"chat_history": said, "question": question})
            question = alone.strip() or question
        return [quote(passage) for passage in self._passages.invoke(question)]

    def answer(self, question: str, quotes: list[common.Quote]) -> Iterator[str]:
        """Let the model answer from the passages."""
        return self._answer.stream(
            {
                "context_str": "\n".join(q.as_data(i) for i, q in enumerate(quotes, start=1)),
                "history": self._recent.invoke(self._history),
                "question": question,
            }
        )

    def remember(self, question: str, answer: str) -> None:
        """Note what was said."""
        self._history += [HumanMessage(question), AIMessage(answer)]

    def clear(self) -> None:
        """Forget what was said."""
        self._history.clear()


def quote(passage: Document) -> common.Quote:
    """Read a passage of `LMKRetriever`."""
    told = passage.metadata
    best = (told["best_start"] - told["start"], told["best_end"] - told["start"])
    return common.Quote(told["document_id"], told["line"], passage.page_content, best)


def model() -> BaseChatModel | None:
    """Return the model that the environment names."""
    if (endpoint := common.endpoint()) is None:
        return None
    openai = require_extra("langchain_openai", "chat", "talking to a model")
    chat_model: BaseChatModel = openai.ChatOpenAI(
        model=endpoint.model, base_url=endpoint.base_url, api_key=endpoint.api_key, max_retries=1
    )
    return chat_model


@contextmanager
def open_chat(options: common.Options) -> Iterator[common.Chat]:
    """Index the folder and open a conversation about it."""
    llm = model()
    vector_store = LMKVectorStore(
        LMKEmbeddings(config=common.CONFIG),
        collection_name=options.collection("langchain"),
        location=options.store,
    )
    with vector_store.store as store:
        common.index(store, options)
        retriever = LMKRetriever(
            store=store, k=4, per_document=2, passage_tokens=common.PASSAGE_TOKENS
        )
        passages = retriever | (
            lambda found: [p for p in found if p.metadata["score"] >= options.min_score]
        )
        if llm is None:
            yield common.QuotingChat(lambda question: [quote(p) for p in passages.invoke(question)])
        else:
            yield ModelChat(passages, llm)


if __name__ == "__main__":
    sys.exit(common.main("Talk about a folder of files, with LangChain.", open_chat))
