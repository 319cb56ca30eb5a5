"""`IPython.display` in a guest: a stand-in where IPython is missing, and hooks where it is not.

Without a kernel IPython prints what it displays, and its richer forms are lost. In both cases what
code displays goes to the cell's result. The classes and functions name a module of IPython as
their own, so that values made of them can be saved and restored.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable

    from ..shared.messages import Json, Names

DISPLAY = "IPython.display"
VERSION = (9, 0, 0)
"""Libraries compare it, and do without workarounds for old versions."""
_EMBEDDED = {b"\x89PNG": "image/png", b"\xff\xd8\xff": "image/jpeg"}
_AS_HTML = {b"GIF8": "image/gif", b"RIFF": "image/webp", b"BM": "image/bmp"}


def contents(name: str, show: Callable[..., Any]) -> Names:
    """Return what a module of the stand-in holds; `show` is the display() of cells."""
    if name == "IPython":
        __import__(DISPLAY)  # as the real package does
        version = ".".join(map(str, VERSION))
        return {"get_ipython": get_ipython, "version_info": VERSION, "__version__": version}
    if name == "IPython.core":
        return {}
    shown = {kind.__name__: kind for kind in _KINDS}
    return dict(shown, **replaced(show))


def redirect(module: Any, show: Callable[..., Any]) -> None:
    """Have the functions of the real IPython's module show values in the cell's result."""
    names = vars(module)
    names.update((name, value) for name, value in replaced(show).items() if name in names)
    if "Javascript" in names:
        names["Javascript"].__repr__ = Javascript.__repr__


def replaced(show: Callable[..., Any]) -> Names:
    """Return what displays values by `show`, by the names that IPython gives it."""
    _shows[:] = [show]
    return {
        "DisplayHandle": DisplayHandle,
        "display": show,
        "clear_output": clear_output,
        "publish_display_data": publish_display_data,
        "update_display": update_display,
    }


_shows: list[Callable[..., Any]] = []


def get_ipython() -> None:
    """Return None: no IPython shell runs these cells."""


def clear_output(wait: bool = False) -> None:
    """Do nothing: what a cell has printed and displayed stays in its result."""


def publish_display_data(data: Any, *_args: Any, **_options: Any) -> None:
    """Show a value that is given as its forms, by their media types."""
    _shows[0](data, raw=True)


def update_display(value: Any, **_options: Any) -> None:
    """Show a value anew: the result keeps the earlier displays, too."""
    _shows[0](value)


class DisplayHandle:
    """What display() returns if it is given a `display_id`."""

    __module__ = DISPLAY

    def __init__(self, display_id: Any = None) -> None:
        is_given = display_id is not None and display_id is not True
        self.display_id = display_id if is_given else os.urandom(16).hex()

    def __repr__(self) -> str:
        return "<DisplayHandle display_id={}>".format(self.display_id)

    def display(self, value: Any, **options: Any) -> None:
        """Show a value."""
        _shows[0](value, **options)

    update = display


class DisplayObject:
    """Data to display: given, or read from a file or an address."""

    __module__ = DISPLAY

    def __init__(
        self,
        data: Any = None,
        url: str | None = None,
        filename: Any = None,
        metadata: Any = None,
        **_options: Any,
    ) -> None:
        if hasattr(data, "__fspath__"):
            data, filename = None, data
        elif isinstance(data, str) and data.startswith(("https://", "http://")):
            data, url = None, data
        elif isinstance(data, str) and _is_file(data):
            data, filename = None, data
        self.data, self.url, self.metadata = data, url, metadata
        self.filename = None if filename is None else os.fspath(filename)
        self.reload()

    def __repr__(self) -> str:
        return "<IPython.core.display.{} object>".format(type(self).__name__)

    def reload(self) -> None:
        """Read the data again, if it comes from a file or an address."""
        if self.filename is not None:
            with open(self.filename, "rb") as file:
                self.data = self._decoded(file.read())
        elif self.url is not None:
            from urllib.request import urlopen

            with urlopen(self.url) as answer:  # noqa: S310 - an http address, see above
                self.data = self._decoded(answer.read())

    def _decoded(self, raw: bytes) -> Any:
        return raw.decode("utf-8", "replace")


def _made(name: str, form: str) -> type[DisplayObject]:
    """Return a class whose data is shown as it is, in one form."""
    show = {"_repr_{}_".format(form): lambda self: self.data}
    return type(name, (DisplayObject,), dict(show, __module__=DISPLAY, __doc__=name + "."))


_FORMS = {"HTML": "html", "JSON": "json", "Latex": "latex", "Markdown": "markdown", "SVG": "svg"}


class Math(DisplayObject):
    """A formula of LaTeX, without the signs around it."""

    __module__ = DISPLAY

    def _repr_latex_(self) -> str:
        return "$\\displaystyle {}$".format(str(self.data).strip("$"))


class Javascript(DisplayObject):
    """A script: nothing runs it, so its text is printed."""

    __module__ = DISPLAY

    def __repr__(self) -> str:
        return str(self.data)


class Image(DisplayObject):
    """A picture: PNG and JPEG as they are, other kinds and addresses as HTML."""

    __module__ = DISPLAY

    def reload(self) -> None:
        """Read the file again; an address is left to what shows the HTML."""
        if self.filename is not None or self.url is None:
            super().reload()
        if isinstance(self.data, str):
            raise FileNotFoundError("no such file: {!r}".format(self.data[:200]))

    def _decoded(self, raw: bytes) -> Any:
        return raw

    def _repr_mimebundle_(self, **_options: Any) -> Json:
        if self.data is None:
            from html import escape

            return {"text/html": '<img src="{}"/>'.format(escape(str(self.url)))}
        for start, media_type in _EMBEDDED.items():
            if self.data.startswith(start):
                return {media_type: self.data}
        if self.data.lstrip().startswith((b"<svg", b"<?xml")):
            return {"image/svg+xml": self.data}
        for start, media_type in _AS_HTML.items():
            if self.data.startswith(start):
                from base64 import b64encode

                source = "data:{};base64,{}".format(media_type, b64encode(self.data).decode())
                return {"text/html": '<img src="{}"/>'.format(source)}
        raise ValueError("the data is not a picture of a known kind")


def _is_file(text: str) -> bool:
    try:
        return os.path.isfile(text)
    except ValueError:  # a zero byte
        return False


_KINDS: tuple[type[DisplayObject], ...] = (
    DisplayObject,
    Image,
    Javascript,
    Math,
    *(_made(*item) for item in _FORMS.items()),
)
get_ipython.__module__ = "IPython"
for _function in (clear_output, publish_display_data, update_display):
    _function.__module__ = DISPLAY
