"""What can be typed after `atoll`, and what is said about what cannot."""

import re
import shlex
import subprocess
import sys
from argparse import ArgumentTypeError, _SubParsersAction

import pytest

from atoll import __version__
from atoll.backends import registry
from atoll.cli import argument_types, arguments
from atoll.cli.commands import completion
from atoll.config import DURABILITIES
from atoll.policy import Isolation


@pytest.mark.parametrize(
    ("text", "number"),
    [("1000", 1000), ("512M", 512 << 20), ("2G", 2 << 30), ("1.5k", 1536), ("64MiB", 64 << 20)],
)
def test_sizes_are_read(text, number):
    assert argument_types.size(text) == number


def test_none_is_a_size_that_has_to_be_asked_for():
    assert argument_types.size("none") is None


@pytest.mark.parametrize("text", ["", "M", "-1", "12X", "1e3", "ten", "0"])
def test_text_that_is_not_a_size_is_refused(text):
    message = f"must be a size such as 512M, 2G, a number of bytes, or none, got {text!r}"
    with pytest.raises(ArgumentTypeError, match=re.escape(message)):
        argument_types.size(text)


@pytest.mark.parametrize("text", ["0", "-1", "inf", "nan", "soon"])
def test_text_that_is_not_a_time_is_refused(text):
    message = f"must be a number of seconds greater than 0, got {text!r}"
    with pytest.raises(ArgumentTypeError, match=re.escape(message)):
        argument_types.seconds(text)


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("data:/data", ("data", "/data", False)),
        ("data:/data:ro", ("data", "/data", False)),
        ("/a/b:/data:rw", ("/a/b", "/data", True)),
        ("odd:name:/data:rw", ("odd:name", "/data", True)),
    ],
)
def test_mounts_are_read(text, parts):
    assert argument_types.mount(text) == parts


@pytest.mark.parametrize("text", ["", "data", "data:data", ":/data", "data:", "data:rw", ":"])
def test_text_that_is_not_a_mount_is_refused(text):
    with pytest.raises(ArgumentTypeError, match="must be SRC:DST or SRC:DST:rw"):
        argument_types.mount(text)


def test_variables_are_read():
    assert argument_types.variable("A=1=2") == ("A", "1=2")
    assert argument_types.variable("A=") == ("A", "")
    assert argument_types.variable("A") == ("A", None)
    for text in ("", "=1"):
        with pytest.raises(ArgumentTypeError, match="must be NAME=VALUE"):
            argument_types.variable(text)


@pytest.mark.parametrize(
    ("argv", "file", "code", "args"),
    [
        (["s.py", "a", "b"], "s.py", None, ["a", "b"]),
        (["s.py", "--json", "a", "--memory", "1G", "b"], "s.py", None, ["a", "b"]),
        (["-c", "1", "a", "b"], None, "1", ["a", "b"]),
        (["-", "--context", "x", "a"], "-", None, ["a"]),
        (["s.py", "--", "-v", "--", "--json"], "s.py", None, ["-v", "--", "--json"]),
        (["--json", "--", "s.py", "-v"], "s.py", None, ["-v"]),
        (["-c", "1", "--", "-c"], None, "1", ["-c"]),
        (["--files", "s.py", "-c", "1", "s.py"], None, "1", ["s.py"]),
    ],
)
def test_the_words_after_run_are_file_and_arguments(argv, file, code, args):
    found = arguments.parse(["run", *argv])
    assert (found.file, found.code, found.args) == (file, code, args)


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["run"], "atoll run: give a FILE, - for stdin, or -c CODE"),
        (["run", "s.py", "--memroy", "1G"], "atoll run: unknown option --memroy. Did you mean"),
        (
            ["run", "--tiemout", "3", "-c", "1"],
            "atoll run: unknown option --tiemout. Did you mean --t",
        ),
        (
            ["run", "--tiemout=3", "-c", "1"],
            "atoll run: unknown option --tiemout. Did you mean --ti",
        ),
        (["doctor", "--atack"], "atoll doctor: unknown option --atack. Did you mean --attack?"),
        (["ask", "--modle", "x", "q"], "atoll ask: unknown option --modle. Did you mean --model?"),
        (["serve", "--port", "x"], "atoll serve: --port must be a whole number from 0 to 65535"),
        (["serve", "--port", "99999"], "atoll serve: --port must be a whole number from 0 to"),
        (["run", "s.py", "-c", "1"], "atoll run: -c after FILE. Put arguments of the program"),
        (["run", "-c", "1", "--mem", "1G"], "atoll run: unknown option --mem."),
        (["run", "-c", "1", "--timeout", "0"], "atoll run: --timeout must be a number of seconds"),
        (["run", "-c", "1", "--timeout"], "atoll run: --timeout expected one argument"),
        (["run", "-c", "1", "--guard", "x"], "atoll run: --guard must be one of ast, restricted"),
        (["rnu"], "atoll: unknown command 'rnu'. Did you mean `atoll run`?"),
        (["xyz"], "atoll: unknown command 'xyz'. Use one of run, exec, repl, "),
        (
            ["my s.py", "-v"],
            "atoll: unknown command 'my s.py'. Did you mean `atoll run 'my s.py'`?",
        ),
        (
            ["/etc/hostname"],
            "atoll: unknown command '/etc/hostname'. Did you mean `atoll run /etc/",
        ),
        (["-c", "print(1)"], "atoll: unknown option -c. Did you mean `atoll run -c CODE`?"),
        (["help", "rnu"], "atoll: unknown command 'rnu'. Did you mean `atoll run`?"),
        (
            ["daemon", "sta"],
            "atoll daemon: unknown command 'sta'. Did you mean `atoll daemon start",
        ),
        (["doctor", "x"], "atoll doctor: unknown option or argument: x"),
        (["daemon", "logs", "-n", "0"], "atoll daemon logs: -n must be a whole number greater"),
    ],
)
def test_a_wrong_argument_is_one_line_and_the_help_to_read(atoll, argv, message):
    code, out, err = atoll(*argv)
    assert (code, out) == (2, "")
    assert err.startswith(message)
    assert err.count("\n") == 2
    assert err.splitlines()[1].startswith("Type `atoll ")


@pytest.mark.parametrize("words", [(), ("run",), ("daemon",), ("daemon", "start")])
def test_help_as_a_word_prints_the_help_of_a_command(atoll, words):
    code, out, err = atoll("help", *words)
    assert (code, out, err) == atoll(*words, "--help")
    assert out.startswith(f"usage: {' '.join(('atoll', *words))}")


def test_backends_are_those_of_the_registry():
    assert ("auto", *registry.names()) == arguments.BACKENDS


def test_levels_are_those_of_the_policy():
    assert list(map(str, Isolation)) == list(arguments.LEVELS)


def test_durabilities_are_those_of_the_configuration():
    assert arguments.DURABILITIES == DURABILITIES


@pytest.mark.parametrize("name", arguments.commands())
def test_a_parser_of_one_command_is_that_of_the_whole_command_line(name):
    (alone,) = _commands_of(arguments.parser(name)).values()
    assert alone.format_help() == _commands_of(arguments.parser())[name].format_help()


def test_the_help_names_the_same_commands_as_the_whole_command_line():
    assert arguments.parser("--help").format_help() == arguments.parser().format_help()


def _commands_of(parser):
    (found,) = (one.choices for one in parser._actions if isinstance(one, _SubParsersAction))
    return found


def test_version_loads_no_part_that_runs_code():
    def loaded(code: str) -> set[str]:
        command = [sys.executable, "-c", f"import sys; {code}; print(*sys.modules)"]
        return set(
            subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
        )

    # From Python 3.14 on, a parser loads dataclasses to say which colours there are.
    usual = loaded("import argparse; argparse.ArgumentParser().format_help()")
    more = loaded("from atoll.cli.main import main; main(['--version'])") - usual
    assert not {"atoll.config", "dataclasses", "asyncio"} & more


def test_version(atoll):
    assert atoll("--version") == (0, f"atoll {__version__}\n", "")


PATHS = [one.path for one in completion.commands()]


@pytest.mark.parametrize("path", PATHS)
def test_each_command_has_a_help_with_examples(atoll, path):
    code, out, _ = atoll(*path.split(), "--help")
    assert code == 0
    assert out.startswith(f"usage: atoll {path}".strip())
    assert "\nexamples:\n  " in out
    assert max(map(len, out.splitlines())) <= 100


def test_the_examples_in_the_help_parse():
    for path in ("atoll", *filter(None, PATHS)):
        for line in arguments.Section(path).examples.splitlines():
            words = shlex.split(re.sub(r"   +.*", "", line.strip()), comments=True)
            words = words[words.index("atoll") + 1 :] if "atoll" in words else []
            cut = next((n for n, w in enumerate(words) if w[:1] in "<>|" or w == ">>"), None)
            if words:
                assert arguments.parse(words[:cut]), (path, line)


def test_the_help_says_what_exit_codes_mean(atoll):
    out = atoll("--help")[1]
    for number in ("0  ", "1  ", "2  ", "3  ", "4  ", "5  ", "124", "130", "137", "141", "152"):
        assert f"\n  {number}" in out


def test_help_shows_examples_and_loads_no_sandbox():
    program = (
        "import sys, atexit\n"
        "from atoll.cli.main import main\n"
        "atexit.register(lambda: print('LOADED', 'asyncio' in sys.modules))\n"
        "main(['--help'])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert "atoll doctor --attack" in done.stdout
    assert done.stdout.endswith("LOADED False\n")


def test_no_command_prints_a_short_help_with_examples_and_exits_with_2(atoll):
    code, out, err = atoll()
    assert (code, out) == (2, "")
    assert err.startswith("usage: atoll ")
    assert "\nexamples:\n  atoll run script.py " in err
    assert "exit codes" not in err


def test_help_fits_a_narrow_terminal_but_for_examples(atoll, monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    lines = atoll("run", "--help")[1].splitlines()
    assert [line for line in lines if len(line) > 60 and line[0] != " "] == []
    assert "Run a program in a new sandbox. Its output appears while" in lines
    monkeypatch.setenv("COLUMNS", "100")
    description = arguments.Section("run").description.splitlines()[0]
    assert description in atoll("run", "--help")[1].splitlines()
