"""What models write because notebooks have it: `!ls`, `%pip`, `%%time`. It runs, or says why not."""

from __future__ import annotations

import pytest

from atoll import Capability

IMPORTS = pytest.mark.needs(Capability.IMPORTS)
PROGRAMS = pytest.mark.needs(Capability.SUBPROCESS)


@pytest.mark.parametrize(
    "code",
    [
        "x = 5\n%matplotlib inline\nx",
        "%load_ext autoreload\n%autoreload 2\nx = 5\nx",
        "%config InlineBackend.figure_format = 'retina'  # sharp\n5",
        "if True:\n    %matplotlib inline\n    x = 5\nx",
    ],
)
def test_settings_of_notebooks_do_nothing(box, code):
    result = box.execute(code)
    assert (result.error, result.value) == (None, 5)
    assert box.validate_code(code)


@pytest.mark.parametrize(
    ("code", "value"),
    [
        ('"""\n!not a command\n%nor this\n"""', "\n!not a command\n%nor this\n"),
        ("b, c = 7, 4\na = b \\\n % c\na", 3),
        ("b, c = 7, 4\n(b\n % c)", 3),
        ("x = 1\nx != 1", False),
        ("'%d' % 5", "5"),
        ("x = 9\nx %= 5\nx", 4),
        ("'what?'", "what?"),
    ],
)
def test_python_is_never_touched(box, code, value):
    assert box.execute(code).value == value


@IMPORTS
@pytest.mark.parametrize(
    ("code", "value"),
    [
        ('%pwd\ntext = """\n!not a command\n"""\ntext', "\n!not a command\n"),
        ("%pwd\nb, c = 7, 4\na = b \\\n % c\na", 3),
        ("%pwd\nb, c = 7, 4\n(b\n % c)", 3),
        ("%pwd\ntext = 'it\\\n!s'\ntext", "it!s"),
        ("%pwd\nx = {  # it's (\n}\nx", {}),
    ],
)
def test_beside_a_magic_python_is_not_touched_either(box, code, value):
    assert box.execute(code).value == value


@IMPORTS
def test_lines_keep_their_numbers(box):
    code = "x = 1\n%matplotlib inline\n%cd /tmp \\\n  \n\ny = 1 / 0"
    result = box.execute(code)
    assert result.error_type == "ZeroDivisionError"
    assert ", line 6, in <module>\n    y = 1 / 0\n" in result.stderr
    result = box.execute("%matplotlib inline\nx = (1 +\n")
    assert result.error_type == "SyntaxError"
    assert not box.validate_code("%matplotlib inline\nx = (1 +\n")


@PROGRAMS
def test_a_command_runs_and_prints(box):
    result = box.execute("name = 'guest'\n!echo hello {name} $name; echo oops >&2; exit 3")
    assert (result.stdout, result.error) == ("hello guest guest\noops\n", None)
    assert box.execute("_exit_code").value == 3
    assert box.execute("x = !printf 'a\\nb'\nx").value == ["a", "b"]
    assert box.execute("!awk 'BEGIN {print \"a\"}'; echo ${HOME}").stdout == "a\n/home/guest\n"
    assert box.execute("%%bash\nfor i in 1 2; do\n  echo $i\ndone").stdout == "1\n2\n"
    assert box.execute("%%sh\necho in sh").stdout == "in sh\n"
    code = "def f(word):\n    !echo {word.upper()}\nf('inner')"
    assert box.execute(code).stdout == "INNER\n"
    assert box.execute("%mkdir made\n%ls").stdout == "made\n"
    assert box.execute("!echo one \\\n  two").stdout == "one two\n"


@PROGRAMS
def test_a_command_may_leave_programs_in_the_background(box):
    result = box.execute("!sleep 600 & echo started\nx = 'next'", timeout_ms=15_000)
    assert (result.error, result.stdout) == (None, "started\n")
    assert box.execute("%%bash\npgrep -c sleep\npkill sleep").stdout == "1\n"


@PROGRAMS
@pytest.mark.needs(Capability.LIMIT_TIME)
def test_a_command_that_does_not_end_is_ended_with_its_cell(open_box):
    box = open_box()
    if guest := getattr(box.inner, "_guest", None):
        guest.session.grace_seconds = 10
    box.execute("x = 'kept'")
    result = box.execute("!sleep 600 & sleep 600", timeout_ms=1000)
    assert (result.kind, result.state_lost) == ("timeout", False)
    assert box.execute("!ps -e | grep -c 'slee[p]'").stdout == "0\n"
    assert box.execute("x").value == "kept"


@IMPORTS
@pytest.mark.needs(Capability.FILES)
def test_a_folder_is_listed_everywhere(box):
    assert (
        box.execute("open('one', 'w').close()\nimport os\nos.mkdir('two')\n%ls").stdout
        == "one\ntwo\n"
    )


@IMPORTS
def test_without_programs_a_command_is_refused_in_words(box):
    if Capability.SUBPROCESS in box.capabilities:
        pytest.skip("this backend runs commands")
    for code in ("!ls", "x = !ls", "%%bash\nls", "%rm x"):
        result = box.execute(code)
        assert result.error_type == "UsageError"
        assert "this backend has no shell: write it in Python" in result.error


@IMPORTS
@pytest.mark.parametrize(
    "code",
    [
        "%pip install no-such-thing",
        "!pip install -q 'no-such-thing>=2' json",
        "!python -m pip install --upgrade no-such-thing",
        "%conda install -y no-such-thing",
        "x = !pip install no-such-thing",
        "%%bash\necho first\npip install no-such-thing",
    ],
)
def test_installing_says_that_there_is_no_network_and_what_to_do(box, code):
    result = box.execute(code)
    assert result.error_type == "UsageError"
    assert "this sandbox has no network" in result.error
    assert "no-such-thing" in result.error
    assert "create_sandbox(" in result.error or "atoll wasm install" in result.error
    assert result.stdout == ""


@IMPORTS
def test_installing_what_is_there_is_done_at_once(box):
    result = box.execute("%pip install json\nimport json")
    assert (result.error, result.stdout) == (None, "Requirement already satisfied: json\n")


@IMPORTS
def test_times_are_measured(box):
    result = box.execute("%%time\nx = sum(range(10))\nx")
    assert result.value == 45
    assert "Wall time: " in result.stdout
    result = box.execute("%time y = x + 1")
    assert (result.error, box.get_variable("y")) == (None, 46)
    assert "Wall time: " in result.stdout
    assert box.execute("%time x").value == 45
    assert "per loop" in box.execute("%timeit x + 1").stdout
    result = box.execute("%%timeit -n 3 -r 2 z = [1]\nz.append(2)")
    assert "of 2 runs, 3 loops each" in result.stdout
    assert box.execute("'z' in globals()").value is False, "as in notebooks"
    failed = box.execute("%%time\n1 / 0")
    assert (failed.error_type, "Wall time: " in failed.stdout) == ("ZeroDivisionError", True)


@IMPORTS
def test_an_error_in_measured_code_shows_no_line_of_the_runtime(box):
    result = box.execute("def f():\n    return 1 / 0\n%time f()")
    files = [line for line in result.stderr.splitlines() if line.startswith("  File")]
    assert [line.split('"')[1][:6] for line in files] == ["<cell ", "<time>", "<cell "]


@IMPORTS
def test_timeit_ends_by_itself(box):
    result = box.execute("import time\n%timeit time.sleep(0.4)", timeout_ms=15_000)
    assert result.error is None
    assert "per loop" in result.stdout


@IMPORTS
def test_folders_of_the_process(box):
    assert box.execute("%cd /tmp\n%pwd").value == "/tmp"
    assert box.execute("here = %pwd\nhere").value == "/tmp"


@IMPORTS
@pytest.mark.needs(Capability.FILES)
def test_a_cell_is_written_to_a_file(box):
    result = box.execute("%%writefile notes.py\nx = '!not run'\n% neither")
    assert (result.error, result.files_created) == (None, ("notes.py",))
    assert box.execute("open('notes.py').read()").value == "x = '!not run'\n% neither\n"


@IMPORTS
def test_help_is_printed(box):
    box.execute("def known(x):\n    'What it does.'")
    for code in ("known?", "?known", "known??"):
        assert "known(x)\n    What it does." in box.execute(code).stdout
    assert box.execute("missing?").error_type == "NameError"


@IMPORTS
@pytest.mark.parametrize("code", ["%unknown x", "%%unknown x\nrest", "x = %unknown"])
def test_an_unknown_magic_is_named_and_the_known_ones_are_told(box, code):
    result = box.execute(code)
    assert result.error_type == "UsageError"
    assert "%unknown is not supported here. There are: %autoreload" in result.error
    assert "%%time" in result.error


@IMPORTS
@pytest.mark.parametrize(
    ("code", "advice"),
    [
        ("%run job.py", "%run is not supported here: use runpy.run_path(FILE). There are: "),
        ("%%capture out\n1", "%%capture is not supported here: use contextlib.redirect_stdout("),
        ("%whos", "%whos is not supported here: use dir(). "),
        ("%env KEY=value", "%env is not supported here: use os.environ. "),
    ],
)
def test_a_magic_of_notebooks_that_there_is_not_says_what_to_write(box, code, advice):
    result = box.execute(code)
    assert result.error.startswith(f"UsageError: {advice}")


@IMPORTS
def test_a_cell_magic_further_down_is_told(box):
    result = box.execute("x = 1\n%%time\nx")
    assert "a cell magic must be the first line of its cell" in result.error


@IMPORTS
def test_guest_code_that_redefines_things_gets_errors_and_the_session_lives(open_box):
    box = open_box()
    harm = (
        "import builtins, re, sys\n"
        "re.compile = re.sub = None\nsys.modules['guest'] = sys.modules['importlib'] = None\n"
        "builtins.print = builtins.help = None\n"
        "__magic__ = 5"
    )
    assert box.execute(harm).error is None
    for code in ("%%time\nx = 1", "%pwd", "!ls", "?len"):
        result = box.execute(code)
        assert (result.kind, result.state_lost) == ("error", False)
    assert box.execute("x = 1\nx").value == 1


@pytest.mark.spec("R4.1")
@pytest.mark.parametrize("guard", ["ast", "restrictedpython"])
def test_a_guard_sees_what_magics_run(open_box, guard):
    box = open_box(guard=guard)
    for code in (
        "!ls",
        "x = !ls",
        "%pip install x",
        "%%bash\nls",
        "%time x.__class__.__base__",
        "%timeit -n 3 x.__class__.__base__",
        "%%timeit\nx.__class__.__base__",
        "%%timeit x.__class__.__base__\n1",
        "%%time\nx.__class__.__base__",
        "%matplotlib inline\nx.__class__.__base__",
        "%%capture __builtins__\n1",
        "%cd /",
        "%%writefile x.py\n1",
        "x.__class__?",
        "__magic__('!', 'ls')",
    ):
        result = box.execute("x = 1\n" + code if code[:2] != "%%" else code)
        assert (result.kind, result.error_type) == ("refused", "GuardError"), code
    assert box.execute("%matplotlib inline\n5").value == 5


@pytest.mark.spec("R4.1")
@IMPORTS
def test_a_guard_lets_magics_run_that_it_can_read(open_box):
    box = open_box(guard="ast")
    assert box.execute("%%time\n5").value == 5
    assert box.execute("%time 2 + 3").value == 5
    assert box.execute("x = (").error_type == "SyntaxError"


@pytest.mark.needs(Capability.SAVE, Capability.SUBPROCESS)
def test_a_function_with_a_command_survives_a_save(open_box):
    box = open_box()
    box.execute("def f():\n    !echo from f")
    restored = open_box(state=box.save())
    assert restored.execute("f()").stdout == "from f\n"


@IMPORTS
def test_options_of_a_timed_cell_are_not_taken_for_code(box):
    result = box.execute("%%timeit -n1 -r1\n1 + 1")
    assert result.error is None
    assert "1 run, 1 loop each" in result.stdout


@PROGRAMS
def test_a_failed_pip_of_a_program_is_explained(box):
    code = (
        "import subprocess\n"
        "raise subprocess.CalledProcessError(1, ['/usr/bin/python3', '-m', 'pip', 'install', 'polarz'])"
    )
    result = box.execute(code)
    assert result.error_type == "subprocess.CalledProcessError"
    assert "pip cannot install polarz: this sandbox has no network" in result.stderr


@IMPORTS
def test_a_debugger_says_that_there_is_no_keyboard(box):
    result = box.execute("import bdb; raise bdb.BdbQuit")
    assert result.error == (
        "bdb.BdbQuit: a debugger needs a keyboard, and this sandbox has none: print what you want "
        "to see"
    )
