"""What a cell shows besides text: richer forms of its value, and figures that were left open."""

from __future__ import annotations

import pytest

from atoll import Artifact, Capability, Display

pytestmark = pytest.mark.needs(Capability.DISPLAY)
PNG_START = b"\x89PNG\r\n\x1a\n"
PLOT = "import matplotlib.pyplot as plt\n"


def shown(result):
    return [(one.media_type, one.data) for one in result.displays]


def value_with(method, body):
    return f"class Rich:\n  def {method}(self):\n    {body}\nRich()"


LIBRARIES = """
from importlib.util import find_spec
all(find_spec(name) for name in ("matplotlib", "pandas", "numpy"))
"""


@pytest.fixture
def plots(box):
    """A sandbox with plotting libraries: looked for, as to import them all takes a second."""
    if box.execute(LIBRARIES).value is not True:
        pytest.skip("the guest's interpreter has no matplotlib, pandas and numpy")
    return box


@pytest.mark.parametrize(
    ("method", "answer", "display"),
    [
        ("_repr_html_", "'<b>é</b>'", ("text/html", "<b>é</b>".encode())),
        ("_repr_markdown_", "'# m'", ("text/markdown", b"# m")),
        ("_repr_latex_", "'$x$'", ("text/latex", b"$x$")),
        ("_repr_svg_", "'<svg/>', {'isolated': True}", ("image/svg+xml", b"<svg/>")),
        ("_repr_png_", "b'\\x89PNG'", ("image/png", b"\x89PNG")),
        ("_repr_json_", "{'a': 1}", ("application/json", b'{"a": 1}')),
    ],
)
def test_the_forms_that_notebooks_know(box, method, answer, display):
    result = box.execute(value_with(method, f"return {answer}"))
    assert (shown(result), result.stderr) == ([display], "")


def test_a_bundle_is_taken_apart_and_stands_for_all(box):
    bundle = "{'text/plain': 'p', 'text/html': '<i>', 'image/png': 'iVBORw0=', 'x/y': 1}"
    code = value_with("_repr_mimebundle_", f"return {bundle}, {{}}")
    result = box.execute(code.replace("Rich()", "  def _repr_svg_(self): return '<svg/>'\nRich()"))
    assert shown(result) == [("text/html", b"<i>"), ("image/png", b"\x89PNG\r")]
    assert result.stderr == "[not shown: x/y: no kind that is passed on]\n"


def test_only_the_last_value_is_shown_and_none_is_nothing(box):
    rich = value_with("_repr_html_", "return 'x'")
    assert box.execute(rich + "; 1").displays == ()
    assert box.execute("Rich").displays == ()
    assert box.execute(value_with("_repr_html_", "return None")).displays == ()


def test_showing_imports_no_plotting(open_box):
    box = open_box(preload="bare")
    assert box.execute(value_with("_repr_html_", "return 'x'")).displays
    assert box.execute("import sys; 'matplotlib' in sys.modules").value is False


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ("1 / 0", "_repr_html_: ZeroDivisionError: division by zero"),
        ("raise SystemExit(3)", "_repr_html_: SystemExit: 3"),
        ("return object()", "_repr_html_: TypeError: memoryview"),
        ("return 'x' * (5 << 20)", "text/html: 5,242,880 bytes are too many"),
    ],
)
def test_what_cannot_be_shown_is_said_in_one_line(box, body, why):
    result = box.execute(value_with("_repr_html_", body))
    assert (result.success, result.displays) == (True, ())
    assert result.stderr.startswith(f"[not shown: {why}")
    assert result.stderr.count("\n") == 1


def test_all_displays_together_are_capped(box):
    big = "def _repr_{}_(self): return '{}' * (3 << 20)"
    forms = "\n  ".join(big.format(kind, kind[0]) for kind in ("html", "markdown", "svg"))
    result = box.execute(f"class Rich:\n  {forms}\nRich()")
    assert [(kind, len(data)) for kind, data in shown(result)] == [
        ("text/html", 3 << 20),
        ("text/markdown", 3 << 20),
    ]
    assert result.stderr == "[not shown: image/svg+xml: 3,145,728 bytes are too many]\n"


@pytest.mark.needs(Capability.DISPLAY, Capability.LIMIT_TIME)
def test_a_form_that_never_comes_ends_at_the_timeout(box):
    result = box.execute(
        "print('partial')\n" + value_with("_repr_html_", "while True: pass"), timeout_ms=500
    )
    assert (result.kind, result.stdout) == ("timeout", "partial\n")
    assert not result.state_lost
    assert box.execute("1").value == 1


def test_names_that_the_runtime_uses_may_be_replaced(box):
    box.execute("import sys, builtins\nsys.modules['matplotlib.pyplot'] = object()")
    result = box.execute("1")
    assert (result.value, result.displays) == (1, ())
    assert result.stderr.startswith("[not shown: figures: AttributeError")


def test_a_data_frame_is_html_and_bounded(plots):
    result = plots.execute("import pandas as pd\npd.DataFrame({'name': range(100_000)})")
    [display] = result.displays
    assert display.media_type == "text/html"
    assert b"<th>name</th>" in display.data
    assert b"100000 rows" in display.data
    assert len(display.data) < 50_000


def test_open_figures_are_kept_without_show_or_savefig(plots):
    result = plots.execute(f"{PLOT}plt.plot([1, 2])\nplt.figure()\nplt.bar([1], [2])\nNone")
    assert [one.media_type for one in result.displays] == ["image/png"] * 2
    assert all(one.data.startswith(PNG_START) for one in result.displays)
    assert result.displays[0] != result.displays[1]
    assert plots.execute("plt.get_fignums()").value == []
    assert plots.execute("1").displays == ()


def test_show_does_no_harm_and_does_not_warn(plots):
    code = "import warnings; warnings.simplefilter('error')\nplt.plot([1]); plt.show()"
    result = plots.execute(PLOT + code)
    assert (result.error, result.stderr, len(result.displays)) == (None, "", 1)


@pytest.mark.parametrize("value", ["figure", "axes", "figure.subfigures(1, 2)[0]"])
def test_a_figure_that_is_the_value_too_is_given_once(plots, value):
    plots.execute(f"{PLOT}figure, axes = plt.subplots(); axes.plot([3, 1, 2]); value = {value}")
    assert [one.media_type for one in plots.execute("value").displays] == ["image/png"]
    again = plots.execute(f"{PLOT}figure, axes = plt.subplots(); {value}")
    assert [one.media_type for one in again.displays] == ["image/png"]


def test_the_figures_of_a_cell_that_failed_are_kept(plots):
    result = plots.execute(PLOT + "plt.plot([1])\n1 / 0")
    assert (result.error_type, len(result.displays)) == ("ZeroDivisionError", 1)


def test_so_many_figures_and_no_more(plots):
    result = plots.execute(PLOT + "for n in range(18): plt.figure(figsize=(1, 1))")
    assert len(result.displays) == 16
    assert result.stderr == "[not shown: 2 figures: 16 are shown already]\n"
    assert plots.execute("plt.get_fignums()").value == []


@pytest.mark.needs(Capability.DISPLAY, Capability.FILES)
def test_a_figure_that_was_saved_is_an_artifact(plots):
    code = "plt.plot([1]); plt.savefig('out.png'); import os; os.path.getsize('out.png')"
    result = plots.execute(PLOT + code)
    assert result.artifacts == (
        Artifact(path="out.png", size=result.value, media_type="image/png"),
    )
    assert [type(one) for one in result.displays] == [Display]


def test_display_shows_values_before_the_last_one(box):
    code = (
        "class Bold:\n    def _repr_html_(self): return '<b>x</b>'\n"
        "    def __repr__(self): return 'bold'\n"
        "display(Bold(), 'text', display_id='a'); display(3)\n'last'"
    )
    result = box.execute(code)
    assert (result.stdout, result.value) == ("bold\n'text'\n3\n", "last")
    assert result.displays == (Display(media_type="text/html", data=b"<b>x</b>"),)
    assert box.execute("1").displays == ()


def test_raw_forms_are_displayed_by_their_media_types(box):
    result = box.execute(
        "display({'text/html': '<i>y</i>', 'text/plain': 'y'}, raw=True)\n"
        "display({'text/latex': 'z'}, raw=True)"
    )
    assert result.stdout == "y\n<text/latex>\n"
    assert [one.data for one in result.displays] == [b"<i>y</i>", b"z"]


def test_a_figure_that_is_displayed_is_given_once(plots):
    result = plots.execute(PLOT + "figure, axes = plt.subplots(); display(figure); display(axes)")
    assert len(result.displays) == 2  # as it was at each of the two calls


@pytest.fixture(params=["stand-in", "IPython"])
def notebook(request, open_box):
    """A sandbox without IPython, where a stand-in takes its place, and one that has it."""
    box = open_box()
    if box.execute("import sys; 'IPython' in sys.modules").value is not False:
        pytest.skip("the stand-in or IPython was imported before")
    paths = (
        "from importlib.machinery import PathFinder\nPathFinder.find_spec('IPython') is not None"
    )
    installed = box.execute(paths).value
    if request.param == "IPython" and not installed:
        pytest.skip("the guest's interpreter has no IPython")
    if request.param == "stand-in" and installed:
        box.execute(WITHOUT_IPYTHON)
    is_real = "import IPython; hasattr(IPython, 'InteractiveShell')"
    assert box.execute(is_real).value is (request.param == "IPython")
    return box


WITHOUT_IPYTHON = """
import importlib.machinery as machinery
find = machinery.PathFinder.find_spec
def find_others(name, path=None, target=None):
    return None if name.partition(".")[0] == "IPython" else find(name, path, target)
machinery.PathFinder.find_spec = find_others
"""
PNG = b"\x89PNG\r\n\x1a\n0000"
IPYTHON_FORMS = f"""
from IPython.display import HTML, JSON, SVG, Image, Latex, Markdown, clear_output, display
open("x.png", "wb").write({PNG!r})
display(HTML("<b>é</b>"), Markdown("# m"))
clear_output(wait=True)
display(Latex("$x$"))
display(SVG("<svg xmlns='http://www.w3.org/2000/svg'/>"))
display(JSON({{"a": 1}}))
display(Image(data={PNG!r}, format="png"))
HTML("last")
"""


def test_what_is_displayed_by_ipython_is_in_the_result(notebook):
    result = notebook.execute(IPYTHON_FORMS)
    assert (result.error, result.stderr) == (None, "")
    assert [kind for kind, _ in shown(result)] == [
        "text/html",
        "text/markdown",
        "text/latex",
        "image/svg+xml",
        "application/json",
        "image/png",
        "text/html",
    ]
    data = [one.data for one in result.displays]
    assert data[:3] == ["<b>é</b>".encode(), b"# m", b"$x$"]
    assert b"<svg" in data[3]
    assert data[4:] == [b'{"a": 1}', PNG, b"last"]


def test_ipython_itself_is_imported_and_has_no_shell(notebook):
    code = "import IPython\nIPython.display.display(IPython.display.HTML('<i>'))\nIPython.get_ipython()"
    result = notebook.execute(code)
    assert (result.error, shown(result), result.value) == (None, [("text/html", b"<i>")], None)


def test_other_functions_of_ipython_show_values_too(notebook):
    result = notebook.execute(
        "from IPython.display import *\n"
        "display(Javascript('alert(1)'))\n"
        "handle = display(HTML('a'), display_id=True); handle.update(HTML('b'))\n"
        "update_display(HTML('c'), display_id=handle.display_id)\n"
        "publish_display_data({'text/html': 'd'})\n"
        "display({'text/html': 'e', 'text/plain': 'E'}, raw=True)"
    )
    assert (result.error, result.stderr) == (None, "")
    assert [one.data for one in result.displays] == [b"a", b"b", b"c", b"d", b"e"]
    assert result.stdout.splitlines()[0] == "alert(1)"
    assert result.stdout.splitlines()[-1] == "E"


@pytest.mark.needs(Capability.DISPLAY, Capability.FILES)
def test_a_picture_is_read_from_its_file(notebook):
    start = f"from IPython.display import Image\nopen('p.png', 'wb').write({PNG!r})\n"
    for image in ("Image('p.png')", "Image(filename='p.png')"):
        assert shown(notebook.execute(f"{start}{image}")) == [("image/png", PNG)]
    jpeg = "open('p.jpg', 'wb').write(b'\\xff\\xd8\\xff\\xe0rest'); Image('p.jpg')"
    assert shown(notebook.execute(jpeg)) == [("image/jpeg", b"\xff\xd8\xff\xe0rest")]
    [by_address] = notebook.execute("Image(url='https://example.com/x.png')").displays
    assert b'src="https://example.com/x.png"' in by_address.data


def test_frames_and_figures_displayed_by_ipython(plots):
    result = plots.execute(
        f"{PLOT}import pandas as pd\nfrom IPython.display import display\n"
        "figure, axes = plt.subplots(); display(pd.DataFrame({'n': [1]})); display(figure)"
    )
    assert [kind for kind, _ in shown(result)] == ["text/html", "image/png"]


@pytest.mark.needs(Capability.DISPLAY, Capability.SAVE)
def test_what_came_from_ipython_is_saved(notebook, open_box):
    notebook.execute(
        "import IPython\nfrom IPython.display import HTML, clear_output, display\nx = HTML('x')"
    )
    state = notebook.save()
    restored = open_box(state=state)
    result = restored.execute("clear_output(); display(x)")
    assert (result.error, shown(result)) == (None, [("text/html", b"x")])
