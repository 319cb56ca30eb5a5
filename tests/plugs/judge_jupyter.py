"""The Jupyter kernel judged by jupyter_kernel_test, and by nbclient running a notebook.

Needs the packages jupyter-kernel-test and nbclient.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import jupyter_kernel_test
import nbformat
from nbclient import NotebookClient

from atoll.integrations import jupyter_kernel

FOLDER = Path(tempfile.mkdtemp(prefix="atoll-judge-"))
jupyter_kernel.install_spec(prefix=FOLDER)
os.environ["JUPYTER_PATH"] = str(FOLDER / "share" / "jupyter")
os.environ["ATOLL_KERNEL_OPTIONS"] = '{"preload": "bare"}'


class TestKernel(jupyter_kernel_test.KernelTests):
    kernel_name = "atoll"
    language_name = "python"
    file_extension = ".py"
    code_hello_world = "print('hello, world')"
    code_stderr = "import sys; print('test', file=sys.stderr)"
    completion_samples = ({"text": "prin", "matches": {"print"}},)
    complete_code_samples = ("1", "print('hello')", "def f(x):\n  return x*2\n\n\n")
    incomplete_code_samples = ("print('''hello", "def f(x):\n  x*2")
    invalid_code_samples = ("import = 7q",)
    code_page_something = ""
    code_generate_error = "raise ValueError('x')"
    code_execute_result = (
        {"code": "1+2+3", "result": "6"},
        {"code": "[n*n for n in range(1, 4)]", "result": "[1, 4, 9]"},
    )
    code_display_data = (
        {
            "code": "class P:\n def _repr_png_(self): return b'\\x89PNG'\nP()",
            "mime": "image/png",
        },
    )
    code_history_pattern = "1?2*"
    supported_history_operations = ("tail", "range", "search")
    code_inspect_sample = "len"
    code_clear_output = ""


def test_nbclient_runs_a_notebook():
    cells = [
        nbformat.v4.new_code_cell("x = 6\nprint('hi')"),
        nbformat.v4.new_code_cell("%checkpoint a"),
        nbformat.v4.new_code_cell("x * 7"),
    ]
    notebook = nbformat.v4.new_notebook(cells=cells)
    NotebookClient(notebook, kernel_name="atoll", timeout=100).execute()
    assert notebook.cells[0].outputs[0].text == "hi\n"
    assert notebook.cells[2].outputs[0].data["text/plain"] == "42"
