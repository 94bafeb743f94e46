"""One encoder shared by threads and by forked workers."""

import subprocess
import sys
import textwrap
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from lmk_rag.config import LandmarkConfig
from lmk_rag.errors import ClosedError

LONG = [("w " * n).strip() for n in (1, 30, 300)]


def test_sixteen_threads_get_what_one_gets(model_folder, load):
    with load(model_folder("bert"), LandmarkConfig(granularity=8, overlap=8)) as encoder:
        query, documents = encoder.encode_queries(["hi"]), encoder.encode_documents(LONG)

        def work(number: int) -> None:
            for step in range(12):
                if (number + step) % 2:
                    np.testing.assert_allclose(encoder.encode_queries(["hi"]), query, atol=1e-5)
                    continue
                for found, expected in zip(encoder.encode_documents(LONG), documents, strict=True):
                    np.testing.assert_allclose(found.vector, expected.vector, atol=1e-5)
                    np.testing.assert_array_equal(found.spans, expected.spans)

        with ThreadPoolExecutor(16) as pool:
            for done in [pool.submit(work, number) for number in range(16)]:
                done.result()


def test_threads_share_one_tokenizer_without_changing_lengths(bert):
    lengths = [len(window.ids) for text in LONG for window in bert.lay_out(text).windows]

    def work(_: int) -> list[int]:
        return [len(window.ids) for text in LONG for window in bert.lay_out(text).windows]

    with ThreadPoolExecutor(16) as pool:
        assert all(found == lengths for found in pool.map(work, range(200)))


def test_closing_while_threads_work_gives_a_result_or_a_closed_error(model_folder, load):
    encoder = load(model_folder("bert"))
    expected = encoder.encode_queries(["hi"])

    def work(_: int) -> str:
        try:
            np.testing.assert_allclose(encoder.encode_queries(["hi"]), expected, atol=1e-5)
        except ClosedError:
            return "closed"
        return "done"

    with ThreadPoolExecutor(8) as pool:
        outcomes = [pool.submit(work, i) for i in range(200)]
        outcomes[20].result()
        encoder.close()
        found = {outcome.result() for outcome in outcomes}
    assert "done" in found <= {"done", "closed"}
    with pytest.raises(ClosedError):
        encoder.encode_queries(["hi"])


FORKING = """
    import multiprocessing, sys, threading, warnings
    import numpy as np
    warnings.simplefilter("ignore", UserWarning)
    from lmk_rag import LandmarkConfig, LandmarkEncoder

    texts = ["w " * n for n in (1, 30, 300)]
    encoder = LandmarkEncoder(
        sys.argv[1], config=LandmarkConfig(granularity=8, overlap=8), device="cpu", dtype="float32"
    )
    expected = [e.vector for e in encoder.encode_documents(texts)]  # OpenMP has threads now
    context = multiprocessing.get_context("fork")

    def work(queue):
        queue.put(np.stack([e.vector for e in encoder.encode_documents(texts)]))

    def fork_two():
        queue = context.Queue()
        workers = [context.Process(target=work, args=(queue,)) for _ in range(2)]
        for worker in workers:
            worker.start()
        for _ in workers:
            np.testing.assert_allclose(queue.get(timeout=60), expected, atol=1e-5)
        for worker in workers:
            worker.join(60)
            assert worker.exitcode == 0

    fork_two()
    # The same while another thread of the parent holds the encoder's lock.
    stop = threading.Event()
    def keep_busy():
        while not stop.is_set():
            encoder.encode_documents(texts)
    busy = threading.Thread(target=keep_busy)
    busy.start()
    fork_two()
    stop.set()
    busy.join()
    encoder.encode_documents(texts)  # the parent is as it was
    print("all equal")
"""


def test_forked_workers_encode_without_hanging_or_warning(model_folder):
    found = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(FORKING), str(model_folder("bert"))],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert found.stderr == ""
    assert found.stdout == "all equal\n"
    assert found.returncode == 0
