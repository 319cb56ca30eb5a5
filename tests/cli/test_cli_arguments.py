"""What can be typed after `atoll`, and what is said about what cannot."""

import subprocess
import sys
from argparse import ArgumentTypeError

import pytest

from atoll import __version__
from atoll.cli import arguments
from atoll.policy import Isolation


@pytest.mark.parametrize(
    ("text", "number"),
    [("1000", 1000), ("512M", 512 << 20), ("2G", 2 << 30), ("1.5k", 1536), ("64MiB", 64 << 20)],
)
def test_sizes_are_read(text, number):
    assert arguments.size(text) == number


def test_none_is_a_size_that_has_to_be_asked_for():
    assert arguments.size("none") is None


@pytest.mark.parametrize("text", ["", "M", "-1", "12X", "1e3", "ten"])
def test_what_is_no_size_is_refused(text):
    with pytest.raises(ArgumentTypeError, match="is no size: use 512M, 2G, bytes, or none"):
        arguments.size(text)


@pytest.mark.parametrize("text", ["0", "-1", "inf", "nan", "soon"])
def test_what_is_no_time_is_refused(text):
    with pytest.raises(ArgumentTypeError, match="no positive number of seconds"):
        arguments.seconds(text)


def test_levels_are_those_of_the_policy():
    assert [level.name.lower() for level in Isolation] == list(arguments.LEVELS)


def test_version(atoll):
    assert atoll("--version") == (0, f"atoll {__version__}\n", "")


@pytest.mark.parametrize("command", ["run", "repl", "doctor"])
def test_each_command_has_help(atoll, command):
    code, out, _ = atoll(command, "--help")
    assert code == 0
    assert f"usage: atoll {command}" in out
    assert "--backend NAME" in out


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


def test_no_command_is_a_usage_error(atoll):
    code, out, err = atoll()
    assert (code, out) == (2, "")
    assert "the following arguments are required: COMMAND" in err


def test_run_without_code_is_a_usage_error(atoll):
    code, _, err = atoll("run")
    assert code == 2
    assert "one of the arguments FILE -c is required" in err


def test_a_file_and_code_are_a_usage_error(atoll):
    assert atoll("run", "a.py", "-c", "1")[0] == 2
