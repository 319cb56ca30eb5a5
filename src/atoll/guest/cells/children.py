"""Lets `multiprocessing` by spawn and forkserver find what cells define, and joblib as well.

Such a child starts a new interpreter and imports the parent's `__main__` from its file, which a
session does not have. So the session's variables are written to a file of their own, by the same
code that saves states, and the child's `__main__` reads them from there. Functions that call the
host are there by name, and say that no child process can. joblib's children (loky) are sent the
functions themselves, and need these names alone.
"""

from __future__ import annotations

import os
import sys

from ..core.imports import when_loaded

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any, Callable, NoReturn

    from ..core.hidden import HiddenPackage
    from ..core.preloaded import Preloaded
    from ..shared.messages import Names

MAX_BYTES = 64 << 20
"""Of variables together; those that do not fit are left out, the largest first."""
PLACE = "/tmp/.main-of-{}"  # noqa: S108 - the guest's own
FORK_SERVER = "ignore"
"""The name of the process for which a fork server asks for a `__main__`."""
LOKY = ("joblib.externals.loky.backend.spawn", "loky.backend.spawn")
_FOLDER = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_SCRIPT = """\
import importlib.util, sys
spec = importlib.util.spec_from_file_location(
    "guest", {folder!r} + "/__init__.py", submodule_search_locations=[{folder!r}]
)
sys.modules["guest"] = importlib.util.module_from_spec(spec)
import guest.cells.children
guest.cells.children.name_host_functions({offered!r})
if {state!r}:
    guest.cells.children.load_into(sys.modules[__name__], {state!r}, {cloudpickle!r}, {left_out!r})
guest.cells.children.hide()
del importlib, spec, guest
"""


class ImportableMain:
    """Writes a session's namespace to where a child process can import it from."""

    def __init__(
        self,
        module: ModuleType,
        offered: Names,
        preloaded: Preloaded,
        runtime: HiddenPackage,
        host_functions: Callable[[], list[str]],
    ) -> None:
        """`host_functions` returns the names of functions that call the host."""
        self._module, self._offered, self._runtime = module, offered, runtime
        self._preloaded, self._host_functions = preloaded, host_functions
        self._servers = 0

    def serve_multiprocessing(self) -> None:
        """Give children the session's `__main__`, once multiprocessing is imported."""
        when_loaded("multiprocessing.spawn", lambda spawn: self._change(spawn, self._write))
        if sys.version_info >= (3, 14):
            when_loaded("multiprocessing.context", self._keep_forking)
        for name in LOKY:
            when_loaded(name, lambda spawn: self._change(spawn, self._write_names))

    def _keep_forking(self, context: Any) -> None:
        """Leave the default start method `fork`, if functions of cells cannot be pickled."""
        with self._runtime:
            from ..state.pickler import MISSING, cloudpickle_beside
        if cloudpickle_beside(_FOLDER) != MISSING:
            return
        names = vars(context)
        fork = names["_concrete_contexts"]["fork"]
        if "_get_platform_default_context" in names:
            names["_get_platform_default_context"] = lambda: fork
        else:  # so in the first versions of 3.14
            vars(names["_default_context"])["_default_context"] = fork

    def _change(self, spawn: Any, write: Callable[[bool], str]) -> None:
        real = spawn.get_preparation_data
        if hasattr(real, "__wrapped__"):
            return

        def get_preparation_data(*args: Any, **kwargs: Any) -> Names:
            data: Names = real(*args, **kwargs)
            has_main = "init_main_from_name" in data or "init_main_from_path" in data
            if sys.modules.get("__main__") is self._module and not has_main:
                data["init_main_from_path"] = write(args[:1] == (FORK_SERVER,))
            return data

        get_preparation_data.__doc__ = real.__doc__
        get_preparation_data.__wrapped__ = real  # type: ignore[attr-defined]
        spawn.get_preparation_data = get_preparation_data

    def _write(self, for_server: bool) -> str:
        """Write the variables, and the script that reads them; return the script's path.

        From Python 3.14 on, a fork server imports `__main__`, and its children do not import the
        same path again: with another path, they get the variables of their own time.
        """
        with self._runtime:
            from ..state.keeper import Keeper
            from ..state.pickler import cloudpickle_beside
        keeper = Keeper(self._module, "", self._offered, self._preloaded)
        cloudpickle = cloudpickle_beside(_FOLDER)
        path = PLACE.format(os.getpid())
        state = path + ".state"
        with _Replacing(state) as file:
            left_out = keeper.save_variables(file, MAX_BYTES, cloudpickle)
        _require_classes(self._module, left_out)
        functions = {n: why for n, why in left_out.items() if callable(vars(self._module).get(n))}
        self._servers += for_server
        script = "{}.server-{}.py".format(path, self._servers) if for_server else path + ".py"
        return self._write_script(script, state, cloudpickle, functions)

    def _write_names(self, _for_server: bool) -> str:
        """Write a script that only names the functions that call the host; return its path."""
        return self._write_script(PLACE.format(os.getpid()) + ".names.py", "", "", {})

    def _write_script(
        self, path: str, state: str, cloudpickle: str, left_out: dict[str, str]
    ) -> str:
        script = _SCRIPT.format(
            folder=_FOLDER,
            offered=self._host_functions(),
            state=state,
            cloudpickle=cloudpickle,
            left_out=left_out,
        )
        with _Replacing(path) as file:
            file.write(script.encode("utf-8", "surrogatepass"))
        return path


class _Replacing:
    """A file that is put in its place when it is whole: a child may be reading the one before."""

    def __init__(self, path: str) -> None:
        self._path = path

    def __enter__(self) -> Any:
        self._file = open(self._path + ".new", "wb", 0)
        return self._file

    def __exit__(self, kind: Any, *_exc: object) -> None:
        self._file.close()
        if kind is None:
            os.replace(self._path + ".new", self._path)


def _require_classes(module: ModuleType, left_out: dict[str, str]) -> None:
    """Raise if a class cannot be sent: a child that gets an object of it would die unheard."""
    for name, reason in left_out.items():
        if isinstance(vars(module).get(name), type):
            text = "the class {} cannot be sent to a new process: {}. Use the start method fork"
            raise RuntimeError(text.format(name, reason))  # noqa: TRY004 - its type is right


class NotSent:
    """Stands in a child process for a function that could not be sent there."""

    def __init__(self, name: str, reason: str) -> None:
        self._text = "{} could not be sent to this process: {}".format(name, reason)

    def __repr__(self) -> str:
        return "<{}>".format(self._text)

    def __call__(self, *_args: Any, **_kwargs: Any) -> NoReturn:
        """Raise RuntimeError with the reason."""
        raise RuntimeError(self._text)


def load_into(module: ModuleType, state: str, cloudpickle: str, left_out: dict[str, str]) -> None:
    """Fill the `__main__` of a child process with the variables of the session."""
    from ..core.imports import StandInFinder
    from ..core.preloaded import Preloaded
    from ..state.keeper import Keeper
    from . import ipython
    from .repl import IPYTHON

    sys.meta_path.append(StandInFinder(IPYTHON, lambda name: ipython.contents(name, print)))
    main = sys.modules.get("__main__")
    try:
        with open(state, "rb", 0) as file:
            preloaded = Preloaded(vars(module))
            Keeper(module, "", {}, preloaded).restore(file, 2 * MAX_BYTES, cloudpickle)
    except Exception as exc:
        reason = "{}: {}".format(type(exc).__name__, exc)
        vars(module)["__getattr__"] = lambda name: NotSent(name, reason)
    finally:
        sys.modules["__main__"] = main  # type: ignore[assignment]
    for name, reason in left_out.items():
        vars(module).setdefault(name, NotSent(name, reason))


def name_host_functions(names: list[str]) -> None:
    """Offer functions of these names, in a child process, that say who can call the host."""
    import builtins

    from ..core.channel import IN_CHILD
    from ..core.failures import HostCallError

    def refuse(*_args: Any, **_kwargs: Any) -> NoReturn:
        raise HostCallError(IN_CHILD)

    vars(builtins).update(dict.fromkeys(names, refuse), HostCallError=HostCallError)


def hide() -> None:
    """Take the runtime out of the modules of a child process."""
    from ..core.hidden import HiddenPackage

    HiddenPackage("guest").hide()
