"""How a session's values are pickled and loaded: cloudpickle, with functions of the session.

Where the host has no cloudpickle, the standard library pickles all but the session's own functions
and classes.

cloudpickle gives a restored function globals of its own. Here it gets the session's namespace
itself, so that it sees what later cells define, as it did before it was saved.
"""

from __future__ import annotations

import builtins
import io
import os
import sys

from ..core.preloaded import LateModule, name_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any, Callable

    from ..shared.messages import Names

PROTOCOL = 5
MISSING = "-"
"""Stands for cloudpickle's folder where the host has no cloudpickle."""
NEEDED = "functions and classes of a session need cloudpickle, which the host does not have"


def load_library(folder: str) -> Any:
    """Return what has the Pickler to use: cloudpickle, or a stand-in of the standard library."""
    return _PlainLibrary() if folder == MISSING else load_cloudpickle(folder)


def cloudpickle_beside(runtime: str) -> str:
    """Return the folder of cloudpickle in a jail: the host's copy, or the guest's own Python's."""
    import importlib.util

    beside = os.path.dirname(runtime)
    for parent in (beside, os.path.dirname(beside)):  # a zygote has the runtime in a package
        folder = os.path.join(parent, "lib", "cloudpickle")
        if os.path.isdir(folder):
            return folder
    return "" if importlib.util.find_spec("cloudpickle") else MISSING


def load_cloudpickle(folder: str) -> Any:
    """Import the host's copy from its folder: nothing of it shows on the guest's path.

    An empty `folder` means that it is part of the guest's own Python.
    """
    import importlib.util

    if "cloudpickle" in sys.modules:
        return sys.modules["cloudpickle"]
    if folder == MISSING:
        raise ImportError(NEEDED)
    if not folder:
        return importlib.import_module("cloudpickle")
    place = importlib.util.spec_from_file_location(
        "cloudpickle", folder + "/__init__.py", submodule_search_locations=[folder]
    )
    assert place is not None
    assert place.loader is not None
    module = importlib.util.module_from_spec(place)
    sys.modules["cloudpickle"] = module
    try:
        place.loader.exec_module(module)
    except BaseException:  # an interrupt: the next one must not find half of it
        del sys.modules["cloudpickle"]
        raise
    return module


class _PlainLibrary:
    """The standard library's pickler in cloudpickle's place."""

    def __init__(self) -> None:
        import _pickle

        class PlainPickler(_pickle.Pickler):
            def reducer_override(self, obj: Any) -> Any:
                """Refuse what would be pickled by its name: no other session has that name."""
                if issubclass(type(obj), (type, _FUNCTION)) and obj.__module__ == "__main__":
                    raise TypeError(NEEDED)
                return NotImplemented

        self.Pickler = PlainPickler


class SessionRules:
    """Differences from cloudpickle; comes before its Pickler among the bases."""

    session: Session
    may_travel: Callable[[str], bool]

    def reducer_override(self, obj: Any) -> Any:
        """Return how to pickle an object; the C pickler asks for all but basic types."""
        if obj is self.session:
            return vars, (self.session.module,)
        if id(obj) in self.session.offered_ids:
            return getattr, (builtins, self.session.offered_ids[id(obj)])
        if type(obj) is LateModule:
            import importlib

            return importlib.import_module, (name_of(obj),)
        if isinstance(obj, io.IOBase) and not isinstance(obj, (io.BytesIO, io.StringIO)):
            raise TypeError("an open file cannot be saved")
        if isinstance(obj, BaseException) and _has_own_init(type(obj)):
            return _newobj(), (type(obj), *obj.args), obj.__dict__ or None
        reduced = super().reducer_override(obj)  # type: ignore[misc]
        if type(obj) is _FUNCTION and obj.__globals__ is vars(self.session.module):
            return self._of_session(reduced)
        return reduced

    def _of_session(self, reduced: Any) -> Any:
        """Rebuild a function with the session's namespace as its globals."""
        if reduced is NotImplemented:  # it is a module's too, and goes by name
            return reduced
        make, (code, _, *rest), (state, slots), *others = reduced
        used = slots["__globals__"]
        used = {name: value for name, value in used.items() if self.may_travel(name)}
        return (make, (code, self.session, *rest), (state, dict(slots, __globals__=used)), *others)


class Session:
    """The namespace that functions belong to, and what the host offers to every session."""

    def __init__(self, module: ModuleType, offered: Names) -> None:
        self.module = module
        self.offered_ids = {id(value): name for name, value in offered.items()}


def make(
    cloudpickle: Any, sink: Any, session: Session, may_travel: Callable[[str], bool]
) -> SessionRules:
    """A pickler for a session's values, whose large buffers go to the sink apart."""
    kind: Any = type("SessionPickler", (SessionRules, cloudpickle.Pickler), {})
    made: SessionRules = kind(sink, protocol=PROTOCOL, buffer_callback=sink.take_buffer)
    made.session, made.may_travel = session, may_travel
    return made


def _newobj() -> Any:
    import copyreg

    return copyreg.__newobj__  # type: ignore[attr-defined]


def _has_own_init(kind: Any) -> bool:
    """Return whether an exception's class is written in Python: it may not take `args`."""
    return kind.__reduce__ is BaseException.__reduce__ and type(kind.__init__) is _FUNCTION


_FUNCTION = type(make)


def make_unpickler(data: bytearray, buffers: list[bytearray], cloudpickle: str) -> Any:
    """Return the C unpickler of `data`, whatever guest code did to the module `pickle`.

    cloudpickle is costly to import, so that waits until a value needs it: a function, a class.
    """
    import _pickle

    class SessionUnpickler(_pickle.Unpickler):
        def find_class(self, module: str, name: str) -> Any:
            if module.split(".", maxsplit=1)[0] == "cloudpickle":
                load_cloudpickle(cloudpickle)
            return super().find_class(module, name)

    return SessionUnpickler(io.BytesIO(data), buffers=buffers)
