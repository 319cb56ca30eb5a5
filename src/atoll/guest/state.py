"""Saves a session's variables and files as a stream of blocks, and restores them from one."""

from __future__ import annotations

import sys

from . import blocks, dump, folder, pickler, unpickler, values
from .hidden import HiddenPackage

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any

    from .ports import Stream

LARGEST = 5
MAX_LEFT_OUT = 1_000
MAX_TEXT = 200


class Keeper:
    """Saves and restores the session whose namespace is that of `module`."""

    def __init__(self, module: ModuleType, root: str, offered: dict[str, Any]) -> None:
        self._module, self._root = module, root
        self._offered = offered
        self._cloudpickle = HiddenPackage("cloudpickle")

    def save(
        self, stream: Stream, max_bytes: int, cloudpickle: str, with_files: bool
    ) -> dict[str, Any]:
        """Write the state to `stream`; what the host is told of it."""
        sys.modules["__main__"] = self._module
        budget, files = blocks.Budget(max_bytes), folder.Folder(self._root)
        if with_files:
            files.find(budget)
        with self._cloudpickle:
            variables = dump.Dump(self._module, self._offered, pickler.load_library(cloudpickle))
            variables.make(budget)
        sizes = dict(files.sizes, **variables.sizes)
        facts = {"size": budget.used, "largest": _largest(sizes)}
        if budget.used > max_bytes:
            return dict(facts, too_large=True)
        writer = blocks.Writer(stream)
        files.write(writer)
        variables.write(writer)
        writer.write(blocks.END)
        left_out = _short(dict(files.left_out, **variables.left_out))
        return dict(facts, stored=writer.stored, codec=writer.codec_name, left_out=left_out)

    def save_variables(self, stream: Stream, cap: int, cloudpickle: str) -> dict[str, str]:
        """Write the variables that fit into `cap` bytes; return the others with the reasons."""
        with self._cloudpickle:
            library = pickler.load_library(cloudpickle)
            variables = dump.Dump(self._module, self._offered, library, whole=True)
            variables.make_fitting(cap)
        writer = blocks.Writer(stream)
        variables.write(writer)
        writer.write(blocks.END)
        return variables.left_out

    def restore(self, stream: Stream, max_bytes: int, cloudpickle: str) -> dict[str, Any]:
        """Read a state from `stream` into the namespace and the folder."""
        sys.modules["__main__"] = self._module
        parts: dict[bytes, list[bytearray]] = {tag: [] for tag in dump.TAGS}
        for tag, name, data in blocks.read(stream, max_bytes):
            if tag in folder.TAGS:
                folder.put(self._root, tag, name, data)
            else:
                parts[tag].append(data)
        with self._cloudpickle:
            (manifest,), (pickled,), buffers = (parts[tag] for tag in dump.TAGS)
            facts = unpickler.make(manifest, [], cloudpickle).load()
            self._import(facts["modules"])
            variables = unpickler.make(pickled, buffers, cloudpickle)
            for name in facts["names"]:
                vars(self._module)[name] = _load(variables, name)
        return {"restored": len(facts["names"])}

    def _import(self, modules: dict[str, str]) -> None:
        for alias, name in modules.items():
            __import__(name)
            vars(self._module)[alias] = sys.modules[name]


def _load(stream: Any, name: str) -> Any:
    try:
        return stream.load()
    except Exception as exc:
        kind, text = values.type_name(type(exc)), values.short_text(exc)
        raise ValueError("variable {!r}: {}: {}".format(name, kind, text)) from None


def _largest(sizes: dict[str, int]) -> list[list[Any]]:
    found = sorted(sizes.items(), key=lambda item: -item[1])[:LARGEST]
    return [[name[:MAX_TEXT], size] for name, size in found]


def _short(left_out: dict[str, str]) -> dict[str, str]:
    """No more than fits an answer."""
    kept = list(left_out.items())[:MAX_LEFT_OUT]
    return {name[:MAX_TEXT]: reason[:MAX_TEXT] for name, reason in kept}
