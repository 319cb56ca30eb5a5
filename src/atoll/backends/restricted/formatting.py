"""str.format and str.format_map whose fields can only access public attributes."""

from __future__ import annotations

import string
from _string import formatter_field_name_split, formatter_parser  # type: ignore[import-not-found]
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    Get = Callable[[Any, str], Any]


class Formatting:
    """Formats as str does; `get` reads every attribute."""

    def __init__(self, get: Get) -> None:
        self._walker = _Walker(get)

    def format(self, text: str, /, *args: Any, **kwargs: Any) -> str:
        """Return text.format(*args, **kwargs)."""
        text = str.__str__(text)  # the content of a subclass of str, without its methods
        if not _walks(text):
            return text.format(*args, **kwargs)
        return self._walker.vformat(text, args, kwargs)

    def format_map(self, text: str, mapping: Mapping[str, Any], /) -> str:
        """Return text.format_map(mapping)."""
        text = str.__str__(text)
        if not _walks(text):
            return text.format_map(mapping)
        return self._walker.vformat(text, (), mapping)


class _Walker(string.Formatter):
    def __init__(self, get: Get) -> None:
        self._get = get

    def get_field(self, name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        first, rest = formatter_field_name_split(name)
        value = self.get_value(first, args, kwargs)
        for is_attribute, key in rest:
            value = self._get(value, key) if is_attribute else value[key]
        return value, first


def _walks(text: str) -> bool:
    """Return whether a field, or one in a format spec, has attributes; str reports bad texts."""
    try:
        for _, field, spec, _ in formatter_parser(text):
            if field and ("." in field or "[" in field):
                return True
            if spec and "{" in spec and _walks(spec):
                return True
    except ValueError:
        return False
    return False
