"""Numbers of system calls are those of the kernel's own headers, for both machines."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from atoll.files import folder
from atoll.jail.measure import kernel_calls
from atoll.jail.walls import syscalls
from atoll.jail.walls.syscall_table import ALLOWED, ASKED, REFUSED

HEADERS = {
    "x86_64": ("/usr/include/x86_64-linux-gnu", "linux-libc-dev"),
    "aarch64": ("/usr/aarch64-linux-gnu/include", "linux-libc-dev-arm64-cross"),
}
COLUMN = {"x86_64": 0, "aarch64": 1}
DEFINITION = re.compile(r"#define (__NR(?:3264)?_\w+) (\w+)")
FLAGS = {"x86_64": "-D__x86_64__", "aarch64": "-D__aarch64__"}


def header(machine: str) -> dict[str, int]:
    """Return the numbers that the kernel's headers define, as the preprocessor sees them."""
    root, package = HEADERS[machine]
    if not Path(root, "asm/unistd.h").exists():
        pytest.skip(f"needs the package {package}")
    command = ["cpp", "-undef", "-nostdinc", FLAGS[machine], "-D__LP64__", f"-I{root}"]
    command += ["-I/usr/include", "-dM", "-include", "asm/unistd.h", "/dev/null"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    except FileNotFoundError:
        pytest.skip("needs the C preprocessor (the package cpp)")
    found = dict(DEFINITION.findall(done.stdout))
    values = {name: found.get(value, value) for name, value in found.items()}  # some by two names
    prefix = "__NR_"
    return {
        name.removeprefix(prefix): int(value)
        for name, value in values.items()
        if name.startswith(prefix) and value.isdecimal()
    }


@pytest.mark.parametrize("machine", list(HEADERS))
def test_the_tables_of_the_filter_have_the_kernels_numbers(machine: str) -> None:
    numbers, column = header(machine), COLUMN[machine]
    newest = max(numbers.values())
    wrong = {
        name: (row[column], numbers.get(name))
        for name, row in {**ALLOWED, **ASKED, **REFUSED}.items()
        if row[column] != numbers.get(name) and (row[column] or 0) <= newest
    }
    assert wrong == {}


@pytest.mark.parametrize("machine", list(HEADERS))
def test_the_calls_that_are_made_by_number_have_the_kernels(machine: str) -> None:
    numbers, column = header(machine), COLUMN[machine]
    every = kernel_calls.ALWAYS + kernel_calls.WALLS + kernel_calls.JAIL
    made = {call.name: call.numbers[column] for call in every}
    made |= {
        "clone": syscalls._CLONE[machine],
        "pivot_root": syscalls._PIVOT_ROOT[machine],
        "setgroups": folder._SETGROUPS[machine],
        "move_mount": syscalls._MOVE_MOUNT,
        "clone3": syscalls._CLONE3,
        "landlock_create_ruleset": syscalls._LANDLOCK_CREATE,
        "landlock_add_rule": syscalls._LANDLOCK_ADD,
        "landlock_restrict_self": syscalls._LANDLOCK_RESTRICT,
    }
    assert made == {name: numbers.get(name) for name in made}
