"""Encoding speed beside sentence-transformers: same weights, texts and threads, in one run.

    make bench

Both read the same texts of 10 to 3,000 words (Python sources and docstrings of this machine),
in turns, round by round, so that a machine whose speed drifts drifts for both. A token counts
if it is content and was really encoded: sentence-transformers cuts at its window, ours goes on
in further windows, and repeated context, special tokens and padding count for nobody.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sysconfig
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table

from lmk_rag import LandmarkEncoder
from lmk_rag.checkpoint import minilm


def make_texts(n: int, seed: int) -> list[str]:
    """Cut this machine's Python sources into n texts of 10 to 3,000 words, log-uniform."""
    draw = random.Random(seed)
    stdlib = Path(sysconfig.get_paths()["stdlib"])
    words = [
        word
        for name in ("argparse.py", "decimal.py", "_pydecimal.py", "tarfile.py", "typing.py",
                     "subprocess.py", "doctest.py", "mailbox.py", "turtle.py", "pydoc.py")
        if (stdlib / name).exists()
        for word in (stdlib / name).read_text("utf-8").split()
    ]  # fmt: skip
    texts = []
    for _ in range(n):
        length = int(10 * (300 ** draw.random()))
        start = draw.randrange(max(1, len(words) - length))
        texts.append(" ".join(words[start : start + length]))
    return texts


def matmul_peak(width: int, inner: int) -> float:
    """Return GFLOP/s of the model's own largest matrix product on this machine, best of 20."""
    rows = 4_096
    a, b = torch.randn(rows, width), torch.randn(inner, width)
    best = float("inf")
    for _ in range(20):
        begin = time.perf_counter()
        torch.nn.functional.linear(a, b)
        best = min(best, time.perf_counter() - begin)
    return 2 * rows * width * inner / best / 1e9


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--texts", type=int, default=96)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, help="also write the figures here")
    options = parser.parse_args()

    from sentence_transformers import SentenceTransformer

    texts = make_texts(options.texts, options.seed)
    folder = str(minilm("the benchmark"))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ours = LandmarkEncoder(folder, dtype="float32", device="cpu")
    peer = SentenceTransformer(folder, device="cpu")
    window = ours.max_length
    if peer.max_seq_length != window:
        raise SystemExit(f"windows differ: {peer.max_seq_length} and {window}")
    lengths = [int(ours.lay_out(text).landmark_tokens.sum()) for text in texts]
    tokens = {"ours": sum(lengths), "peer": sum(min(n, window - 2) for n in lengths)}
    runs: dict[str, Callable[[], object]] = {
        "ours": lambda: ours.encode_documents(texts),
        "peer": lambda: peer.encode(texts, normalize_embeddings=True),
    }
    speeds: dict[str, list[float]] = {"ours": [], "peer": []}
    ours.encode_documents(texts[:8])  # both warm up
    peer.encode(texts[:8])
    for round_ in range(options.rounds):
        for name in ("ours", "peer") if round_ % 2 else ("peer", "ours"):
            begin = time.perf_counter()
            runs[name]()
            speeds[name].append(tokens[name] / (time.perf_counter() - begin))
    config = ours._checkpoint.model.config
    peak = matmul_peak(config.hidden_size, config.intermediate_size)
    matrices = (
        config.num_hidden_layers
        * config.hidden_size
        * (4 * config.hidden_size + 2 * config.intermediate_size)
    )
    shares = {n: 2 * matrices * statistics.median(s) / 1e9 / peak for n, s in speeds.items()}
    ratios = [a / b for a, b in zip(speeds["ours"], speeds["peer"], strict=True)]

    table = Table(title=f"{options.texts} texts, {torch.get_num_threads()} threads, float32, "
                        f"window {window}")  # fmt: skip
    for column in ("", "tokens encoded", "tokens/s (median)", "min to max", "share of matmul peak"):
        table.add_column(column, justify="right")
    for name, label in (("ours", "lmk-rag"), ("peer", "sentence-transformers")):
        found = speeds[name]
        table.add_row(
            label,
            f"{tokens[name]:,}",
            f"{statistics.median(found):,.0f}",
            f"{min(found):,.0f} to {max(found):,.0f}",
            f"{shares[name]:.0%}",
        )
    console = Console()
    console.print(table)
    console.print(
        f"ratio, round by round: median {statistics.median(ratios):.2f}, "
        f"{min(ratios):.2f} to {max(ratios):.2f}; matmul peak {peak:,.0f} GFLOP/s"
    )
    if options.json:
        figures = {"tokens": tokens, "tokens_per_s": speeds, "ratios": ratios,
                   "matmul_gflops": peak, "share_of_peak": shares}  # fmt: skip
        options.json.write_text(json.dumps(figures, indent=2) + "\n", "utf-8")


if __name__ == "__main__":
    main()
