"""Saves a session's variables and files as a stream of blocks, and restores them from one."""

from __future__ import annotations

import os
import sys

from ..core.hidden import HiddenPackage
from ..shared import values
from . import blocks, dump, folder, leftovers, pickler

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any, Callable

    from ..core.ports import Stream
    from ..core.preloaded import Preloaded
    from ..shared.messages import Json, Names

LARGEST = 5
MAX_LEFT_OUT = 1_000
MAX_TEXT = 200
NOT_SAVED = "it is not saved"


class Keeper:
    """Saves and restores the session whose namespace is that of `module`."""

    def __init__(self, module: ModuleType, root: str, offered: Names, preloaded: Preloaded) -> None:
        self._module, self._root = module, root
        self._offered, self._preloaded = offered, preloaded
        self._cloudpickle = HiddenPackage("cloudpickle")
        self.given: Any = None
        """The context that the host gave."""
        self.environment: dict[str, str] = {}
        """The environment that the session started with."""
        self.elsewhere: set[str] = set()
        """What lay outside of the working folder when the session started."""
        self.clones: list[int] = []
        """Processes that are live clones of this one."""
        self.settings: Json = {}
        """Settings of the interpreter that the session started with."""
        self.tasks: Callable[[], int] = lambda: 0
        """Returns how many tasks of cells wait for the next one that awaits."""

    def save(
        self, stream: Stream, max_bytes: int, cloudpickle: str, with_files: bool, whole: bool
    ) -> Json:
        """Write the state to `stream`, and return what the host is told of it.

        `whole`: the session is to go on from it as if nothing had happened. So private names, a
        changed context, the environment and the current folder are saved too.
        """
        sys.modules["__main__"] = self._module
        budget, files = blocks.Budget(max_bytes), folder.Folder(self._root)
        if with_files:
            files.find(budget)
        with self._cloudpickle:
            library = pickler.load_library(cloudpickle)
            variables = self._dump(library, self.given, whole)
            others = self._others()
            extra = dict(others, generators=leftovers.generators()) if whole else {}
            variables.make(budget, extra)
        sizes = dict(files.sizes, **variables.sizes)
        facts = {"size": budget.used, "largest": _largest(sizes)}
        if budget.used > max_bytes:
            return dict(facts, too_large=True)
        writer = blocks.Writer(stream)
        files.write(writer)
        variables.write(writer)
        writer.write(blocks.END)
        left_out = dict(files.left_out, **variables.left_out)
        left_out.update(leftovers.find(self._root, self.elsewhere, self.clones))
        if self.tasks():
            left_out["tasks"] = "running tasks of asyncio are not saved"
        if whole:
            left_out.update(leftovers.own_modules(self._root, self.elsewhere))
        else:
            left_out.update(_named(others))
        left_out = shortened(left_out)
        return dict(facts, stored=writer.stored, codec=writer.codec_name, left_out=left_out)

    def save_variables(self, stream: Stream, cap: int, cloudpickle: str) -> dict[str, str]:
        """Write the variables that fit into `cap` bytes; return the others with the reasons."""
        with self._cloudpickle:
            library = pickler.load_library(cloudpickle)
            variables = self._dump(library, None, True)
            variables.make_fitting(cap)
        writer = blocks.Writer(stream)
        variables.write(writer)
        writer.write(blocks.END)
        return variables.left_out

    def restore(
        self, stream: Stream, max_bytes: int, cloudpickle: str, replace: bool = False
    ) -> Json:
        """Read a state from `stream` into the namespace and the folder.

        `replace`: whether its files take the place of those that an image has in the folder.
        """
        sys.modules["__main__"] = self._module
        parts: dict[bytes, list[bytearray]] = {tag: [] for tag in dump.TAGS}
        for tag, name, data in blocks.read(stream, max_bytes):
            if tag in folder.TAGS:
                folder.put(self._root, tag, name, data, replace)
            else:
                parts[tag].append(data)
        with self._cloudpickle:
            (manifest,), (pickled,), buffers = (parts[tag] for tag in dump.TAGS)
            facts = pickler.make_unpickler(manifest, [], cloudpickle).load()
            self._import(facts["modules"])
            self._preloaded.restore(facts, self._offered)
            variables = pickler.make_unpickler(pickled, buffers, cloudpickle)
            for name in facts["names"]:
                vars(self._module)[name] = _load(variables, name)
        _restore_others(facts)
        return {"restored": len(facts["names"])}

    def _dump(self, library: Any, given: Any, whole: bool) -> dump.Dump:
        result = self._module, self._offered, self._preloaded
        return dump.Dump(*result, library, given=given, whole=whole)

    def _others(self) -> Json:
        """Return what a session has besides variables and files, as far as it can be saved."""
        changed = leftovers.changed_environment(self.environment)
        here = leftovers.current_folder(self._root)
        now = leftovers.settings()
        other = {name: now[name] for name in now if self.settings.get(name, now[name]) != now[name]}
        return {"environment": changed, "folder": here, "settings": other}

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


def _named(others: Json) -> dict[str, str]:
    """Return what of `others` a state without them lacks, each with the reason."""
    result = {"environment " + name: NOT_SAVED for name in others["environment"]}
    result.update((name, NOT_SAVED) for name in others["settings"])
    if others["folder"] is not None:
        result["current folder"] = NOT_SAVED
    return result


def _restore_others(facts: Json) -> None:
    for name, value in facts.get("environment", {}).items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
    if facts.get("folder") is not None:
        os.chdir(facts["folder"])
    leftovers.restore_settings(facts.get("settings", {}))
    leftovers.restore_generators(facts.get("generators", {}))


def _largest(sizes: dict[str, int]) -> list[list[Any]]:
    result = sorted(sizes.items(), key=lambda item: -item[1])[:LARGEST]
    return [[name[:MAX_TEXT], size] for name, size in result]


def shortened(left_out: dict[str, str]) -> dict[str, str]:
    """Return no more than fits an answer; the last item says how many are not named."""
    kept: dict[str, str] = {}
    for name, why in list(left_out.items())[:MAX_LEFT_OUT]:
        kept[_cut_name(name, len(kept))] = why[:MAX_TEXT]
    if len(left_out) > MAX_LEFT_OUT:
        kept["..."] = "and {:,} more".format(len(left_out) - MAX_LEFT_OUT)
    return kept


def _cut_name(name: str, number: int) -> str:
    """Return a name that fits; long ones that begin alike are numbered."""
    return name if len(name) <= MAX_TEXT else "{}... ({})".format(name[: MAX_TEXT - 20], number)
