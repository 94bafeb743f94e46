"""One encoder per settings in a process: copies of a component share it."""

from __future__ import annotations

import threading
import weakref
from pathlib import Path

from lmk_rag import LandmarkConfig, LandmarkEncoder

Settings = tuple[str | None, LandmarkConfig | None, str, str, bool, int | None]

_LOCK = threading.Lock()
_ALIVE: weakref.WeakValueDictionary[object, LandmarkEncoder] = weakref.WeakValueDictionary()
# The last one stays: ingestion workers unpickle a component per batch and drop it again.
_LAST: list[LandmarkEncoder] = []


def shared_encoder(settings: Settings) -> LandmarkEncoder:
    """Return the encoder of these settings, loaded if there is none."""
    model, config, device, dtype, trust_remote_code, batch_tokens = settings
    key = (settings, _stamp(model))
    with _LOCK:
        encoder = _ALIVE.get(key)
        if encoder is None:
            encoder = _ALIVE[key] = LandmarkEncoder(
                model,
                config=config,
                device=device,
                dtype=dtype,
                trust_remote_code=trust_remote_code,
                batch_tokens=batch_tokens,
            )
        _LAST[:] = [encoder]
    return encoder


def _stamp(model: str | None) -> tuple[tuple[str, int], ...]:
    """Tell a folder from its next version: training writes to the same place again."""
    if model is None or not Path(model).is_dir():
        return ()
    files = sorted(path for path in Path(model).rglob("*") if path.is_file())
    return tuple((str(path), path.stat().st_mtime_ns) for path in files)
