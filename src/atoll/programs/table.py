"""Typed access to settings that were read from a file; ConfigError names the file and the key."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from atoll.errors import ConfigError
from atoll.policy import check_keys

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

MAX_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Table:
    """An object of a settings file."""

    path: Path
    given: Mapping[str, Any]
    name: str = ""
    """Where it is in the file, such as `network`."""

    @classmethod
    def read(cls, path: Path, parse: Callable[[str], Any]) -> Table:
        """Return the whole file."""
        try:
            with path.open("rb") as file:
                data = file.read(MAX_BYTES + 1)
            if len(data) > MAX_BYTES:
                raise ConfigError(f"{path}: larger than {MAX_BYTES >> 20} MiB")
            given = parse(data.decode())
        except OSError as exc:
            raise ConfigError(f"cannot read {path}: {os.strerror(exc.errno or 0)}") from None
        except (ValueError, RecursionError) as exc:
            raise ConfigError(f"{path}: {exc}") from None
        if not isinstance(given, dict):
            raise ConfigError(f"{path}: must be an object")
        return cls(path, given)

    def check(self, *known: str) -> Table:
        """Raise ConfigError for a key that is not known."""
        try:
            check_keys("key", self.given, known)
        except ConfigError as exc:
            raise ConfigError(f"{self._at('')}: {exc}") from None
        return self

    def refuse(self, keys: Mapping[str, str]) -> Table:
        """Raise ConfigError for one of these keys, with its reason, if it has an effect."""
        for key, why in keys.items():
            if self.given.get(key):
                raise ConfigError(f"{self._at(key)} is not supported: {why}")
        return self

    def table(self, key: str) -> Table:
        """Return an inner object; an empty one if it is missing."""
        return Table(self.path, self._get(key, dict, {}, "an object"), self._named(key))

    def tables(self, key: str) -> list[Table]:
        """Return a list of objects."""
        items = self._get(key, list, [], "a list of objects")
        if not all(isinstance(item, dict) for item in items):
            raise ConfigError(f"{self._at(key)} must be a list of objects")
        names = (f"{self._named(key)}[{number}]" for number in range(len(items)))
        return [Table(self.path, item, name) for item, name in zip(items, names, strict=True)]

    def text(self, key: str, *choices: str) -> str | None:
        """Return a text, one of `choices` if there are some; None if it is missing."""
        text: str | None = self._get(key, str, None, "a text")
        if choices and text is not None and text not in choices:
            raise ConfigError(f"{self._at(key)} must be {' or '.join(choices)}, not {text!r:.80}")
        return text

    def texts(self, key: str) -> list[str]:
        """Return a list of texts."""
        texts: list[str] = self._get(key, list, [], "a list of texts")
        if not all(isinstance(text, str) for text in texts):
            raise ConfigError(f"{self._at(key)} must be a list of texts")
        return texts

    def flag(self, key: str) -> bool:
        """Return true or false; False if it is missing."""
        return bool(self._get(key, bool, False, "true or false"))

    def number(self, key: str, least: int, most: int | None = None) -> int | None:
        """Return a whole number; None if it is missing."""
        number: int | None = self._get(key, int, None, "a whole number")
        if number is not None and not least <= number <= (most or number):
            raise ConfigError(f"{self._at(key)} must be at least {least}, not {number}")
        return number

    def texts_by_name(self, key: str) -> dict[str, str]:
        """Return an object whose values are texts."""
        given: dict[str, str] = self._get(key, dict, {}, "a table of texts")
        if not all(isinstance(text, str) for text in given.values()):
            raise ConfigError(f"{self._at(key)} must be a table of texts")
        return given

    def _get(self, key: str, kind: type, default: Any, shape: str) -> Any:
        value = self.given.get(key, default)
        if key in self.given and (
            not isinstance(value, kind) or (kind is int and isinstance(value, bool))
        ):
            raise ConfigError(f"{self._at(key)} must be {shape}, not {value!r:.80}")
        return value

    def _named(self, key: str) -> str:
        return f"{self.name}.{key}" if self.name and key else self.name or key

    def _at(self, key: str) -> str:
        named = self._named(key)
        return f"{self.path}: {named}" if named else str(self.path)
