"""What a cell shows besides text: its last value's richer forms, and the figures it left open.

The methods are those that notebooks know. Guest code may have replaced any of them, so each step
may fail, and what does not fit is left out and said. Nothing is imported to find that there is
nothing to show.
"""

from __future__ import annotations

import sys

from ..core.streams import complain
from ..shared.kinds import base64_of, bytes_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable

    from ..shared.messages import Json

MAX_DISPLAYS = 16
MAX_BYTES = 4 << 20
MAX_TOTAL_BYTES = 8 << 20
PNG, JPEG = "image/png", "image/jpeg"
JSON = "application/json"
METHODS = (
    ("_repr_html_", "text/html"),
    ("_repr_markdown_", "text/markdown"),
    ("_repr_latex_", "text/latex"),
    ("_repr_svg_", "image/svg+xml"),
    ("_repr_png_", PNG),
    ("_repr_json_", JSON),
)
MEDIA_TYPES = frozenset((*(media_type for _, media_type in METHODS), JPEG))
"""JPEG only in a bundle: a value with that method is PNG as well."""
_BUNDLE = "_repr_mimebundle_"
_PYPLOT = "matplotlib.pyplot"
_MAX_REASON = 200
_TOO_MANY = "{} are shown already".format(MAX_DISPLAYS)


class Bundle:
    """A value that is given as its forms, by their media types."""

    def __init__(self, forms: Any) -> None:
        self._forms = dict(forms)

    def __repr__(self) -> str:
        return str(self._forms.get("text/plain", "<{}>".format(", ".join(map(str, self._forms)))))

    def _repr_mimebundle_(self) -> Json:
        return self._forms


class Shown:
    """What one cell shows, as [media type, base64], up to the caps."""

    def __init__(self) -> None:
        self.displays: list[list[str]] = []
        self._room = MAX_TOTAL_BYTES
        self._drawn: list[Any] = []

    def collect(self, value: Any) -> None:
        """Add the value's forms and the figures left open; raise nothing but KeyboardInterrupt."""
        self.attempt("the value", self._everything, value)

    def add(self, value: Any) -> None:
        """Add the forms of a value that the cell itself displays, or the figure that it is."""
        figure = self.attempt("a figure", _figure_of, value)
        if figure is not None:
            self.attempt("a figure", self._add_figure, figure)
        elif type(value).__module__ != "builtins":
            self.attempt("the value", self._value, value)

    def attempt(self, what: str, work: Callable[..., Any], *args: Any) -> Any:
        """Return what `work` returns; None, with a line on stderr, if it raised."""
        try:
            return work(*args)
        except KeyboardInterrupt:
            raise
        except BaseException as exc:  # code of the guest's, which may raise anything at all
            self._leave_out(what, _reason(exc))
            return None

    def _everything(self, value: Any) -> None:
        """Collect the value's forms, then figures: the value's own and those left open."""
        figure = None
        if type(value).__module__ != "builtins":
            self._value(value)
            figure = self.attempt("a figure", _figure_of, value)
        pyplot = sys.modules.get(_PYPLOT)
        if figure is not None or pyplot is not None:
            self._figures(figure, pyplot)

    def _value(self, value: Any) -> None:
        kind = type(value)
        if hasattr(kind, _BUNDLE):
            self.attempt(_BUNDLE, self._add_bundle, value)
            return
        for method, media_type in METHODS:
            if hasattr(kind, method):
                self.attempt(method, self._add_form, media_type, value, method)

    def _figures(self, first: Any, pyplot: Any) -> None:
        """Each once; those that pyplot holds are closed then, as the next cell starts anew."""
        left_open = self.attempt("figures", _open_figures, pyplot) or []
        figures: list[Any] = []
        for figure in ([] if first is None else [first]) + left_open:
            if not any(figure is known for known in figures + self._drawn):
                figures.append(figure)
        for count, figure in enumerate(figures):
            if len(self.displays) >= MAX_DISPLAYS:
                self._leave_out("{} figures".format(len(figures) - count), _TOO_MANY)
                break
            self.attempt("a figure", self._add_figure, figure)
        if left_open:
            self.attempt("closing figures", pyplot.close, "all")

    def _add_bundle(self, value: Any) -> None:
        bundle = _without_metadata(getattr(value, _BUNDLE)())
        for media_type, data in dict(bundle or {}).items():
            if media_type in MEDIA_TYPES:
                self.attempt(media_type, self._add, media_type, data)
            elif media_type != "text/plain":
                self._leave_out(str(media_type), "no kind that is passed on")

    def _add_form(self, media_type: str, value: Any, method: str) -> None:
        self._add(media_type, getattr(value, method)())

    def _add_figure(self, figure: Any) -> None:
        import io

        file = io.BytesIO()
        figure.savefig(file, format="png", bbox_inches="tight")
        self._drawn.append(figure)
        self._add(PNG, file.getvalue())

    def _add(self, media_type: str, data: Any) -> None:
        data = _without_metadata(data)
        if data is None:
            return
        raw = _as_bytes(media_type, data)
        if len(self.displays) >= MAX_DISPLAYS:
            self._leave_out(media_type, _TOO_MANY)
        elif len(raw) > min(MAX_BYTES, self._room):
            self._leave_out(media_type, "{:,} bytes are too many".format(len(raw)))
        else:
            self._room -= len(raw)
            self.displays.append([media_type, base64_of(raw)])

    def _leave_out(self, what: str, why: str) -> None:
        complain("[not shown: {}: {}]".format(_one_line(what), why))


def _as_bytes(media_type: str, data: Any) -> bytes:
    if media_type == JSON and not isinstance(data, str):
        import json

        data = json.dumps(data)
    if not isinstance(data, str):
        return bytes(memoryview(data))
    if media_type in (PNG, JPEG):
        return bytes_of(data)
    return data.encode("utf-8", "replace")


def _figure_of(value: Any) -> Any:
    """Return the figure that a matplotlib object is, or is part of."""
    figures, axes = sys.modules.get("matplotlib.figure"), sys.modules.get("matplotlib.axes")
    if figures is None or axes is None or not isinstance(value, (figures.FigureBase, axes.Axes)):
        return None
    figure = value.figure
    return figure.figure  # of a part of a figure: the whole


def _open_figures(pyplot: Any) -> list[Any]:
    return [] if pyplot is None else [pyplot.figure(number) for number in pyplot.get_fignums()]


def _without_metadata(data: Any) -> Any:
    """Notebooks take a pair of data and metadata as well."""
    return data[0] if isinstance(data, tuple) else data


def _reason(exc: BaseException) -> str:
    try:
        return _one_line("{}: {}".format(type(exc).__name__, exc))
    except Exception:
        return type(exc).__name__


def _one_line(text: str) -> str:
    return " ".join(text[:_MAX_REASON].split())
