"""The variables of a sandbox as the mapping that rlms expects of an environment."""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import TYPE_CHECKING, Any

from atoll.errors import VariableError
from atoll.guest.shared.values import Opaque
from atoll.integrations.common import LARGE

if TYPE_CHECKING:
    from collections.abc import Iterator

    from atoll.sandbox.blocking import SyncSandbox


class GuestVariables(MutableMapping[str, Any]):
    """The variables of a sandbox, read on access."""

    def __init__(self, box: SyncSandbox) -> None:
        self._box: SyncSandbox | None = box

    @property
    def closed(self) -> bool:
        """Whether the sandbox has ended."""
        return self._box is None

    def close(self) -> None:
        """Detach from the sandbox: the mapping is empty from now on."""
        self._box = None

    def small(self) -> dict[str, Any]:
        """Return all variables; a large one as a description."""
        found: dict[str, Any] = {}
        for one in self._box.variables() if self._box else ():
            large = (one.size or 0) > LARGE or max(one.shape or (0,)) > LARGE
            told = f"<{one.type}, shape {one.shape}, not copied: it is large>"
            if one.type not in ("function", "module", "type"):
                found[one.name] = told if large else self._read(one.name)
        return found

    def __getitem__(self, name: str) -> Any:
        if self._box is None or not self._box.has_variable(name):
            raise KeyError(name)
        return self._read(name)

    def __setitem__(self, name: str, value: Any) -> None:
        if self._box is not None:
            self._box.set_variable(name, value)

    def __delitem__(self, name: str) -> None:
        if self._box is None or not self._box.execute(f"del {name}").success:
            raise KeyError(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._box.variables().names if self._box else ())

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def clear(self) -> None:
        """Detach from the sandbox: rlms clears the variables of an ended environment."""
        self.close()

    def _read(self, name: str) -> Any:
        assert self._box is not None
        try:
            value = self._box.get_variable(name, plain=True)
        except VariableError as exc:
            return f"<{name}: {exc}>"
        return value.repr if isinstance(value, Opaque) else value
