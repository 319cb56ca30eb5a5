"""Show the main job in one screen: code written by a model explores a large log in a sandbox.

    make demo

CELLS plays the part of the model: code as a model would send it. `answer` plays the part of the
language model that the code asks; a real program calls a model there.
"""

from __future__ import annotations

import asyncio
import sys
import time

import atoll
from atoll.backends import registry
from atoll.errors import AtollError
from atoll.extras import install_command

LINES = 2_000_000
OTHERS = {
    "wasm": "wasm build",
    "pyodide": "pyodide setup",
}
"""The optional backends, and what prepares each once it is installed: `atoll wasm build`."""
ENDLESS = "while True: pass"
CELLS = (
    (
        "The code looks through the log and keeps what it finds in variables.",
        "print(f'{len(context):,} characters, {count_lines():,} lines')\n"
        "errors = search_context(r'ERROR .*', window=0)\n"
        "services = sorted({hit['match'].split()[1] for hit in errors})\n"
        "print('services with errors:', services)",
    ),
    (
        "The next cell still has them. It asks a language model about each service.",
        "notes = batch_llm_query([f'Why did {name} fail? ' + quote_match(f'ERROR {name}.*')"
        " for name in services])\n"
        "for name, note in zip(services, notes): print(f'{name}: {note}')",
    ),
    (
        "It writes a file; the value of the last line comes back as a Python object.",
        "open('report.md', 'w').write(''.join(f'- {n}: {t}\\n' for n, t in zip(services, notes)))\n"
        "len(services)",
    ),
    (
        "It cannot reach the network ...",
        "import urllib.request; urllib.request.urlopen('https://example.com')",
    ),
    ("... nor the files of this machine.", "open('/etc/shadow').read()"),
    ("Code that never ends is stopped at its time limit ...", ENDLESS),
    ("... and the session goes on: the variables are still there.", "services"),
)


def main() -> None:
    """Run the cells one after the other and show what comes back."""
    print("Atoll runs Python that a model wrote, in a sandbox on this machine.\n")
    text = make_log()
    started = time.perf_counter()
    with atoll.create_sandbox(context=text, on_llm_query=answer) as box:
        took = (time.perf_counter() - started) * 1000
        megabytes, isolation = len(text) / 1e6, box.isolation.name.lower()
        print(f"Started a sandbox in {took:.0f} ms (backend {box.backend}, isolation {isolation}).")
        print(f"The code in it finds a log of {megabytes:.0f} MB in the variable `context`.\n")
        for number, (what, code) in enumerate(CELLS, 1):
            limit = 2_000 if code == ENDLESS else None
            show(f"{number}. {what}", code, box.execute(code, timeout_ms=limit))
        print("The program outside reads the file that the code wrote (box.files):")
        print(box.files.read("report.md"))
        if atoll.Capability.SHELL in box.capabilities:
            print("\nIt can run shell commands in the same sandbox (box.shell):")
            print("  $ wc -l report.md; id -un")
            for line in box.shell("wc -l report.md; id -un").output.splitlines():
                print(" ", line)
    show_backends()


def show_backends() -> None:
    """Run one cell in every backend that is ready; say of the others what to type."""
    print("\nThe same code in other backends:")
    for name in ("native", *OTHERS):
        print(f"  {name:8} {try_backend(name)}", flush=True)


def try_backend(name: str) -> str:
    """Return what a backend answers; nothing is downloaded or built for it."""
    try:
        if missing := what_to_type(name):
            return f"not ready (optional). To use it, type: {missing}"
        started = time.perf_counter()
        with atoll.create_sandbox(backend=name, timeout_ms=20_000) as box:
            result = box.execute("import sys; f'Python {sys.version.split()[0]} on {sys.platform}'")
            took = time.perf_counter() - started
            return f"isolation {box.isolation.name.lower()}, {result.value} [{took:.2f} s]"
    except AtollError as exc:
        return f"cannot run here: {exc}"


def what_to_type(name: str) -> str:
    """Return the command that makes a backend ready; empty if it can start at once."""
    if name not in OTHERS:
        return ""
    found = asyncio.run(registry.load(name).availability(atoll.SandboxConfig(backend=name)))
    prepare = f"{sys.executable} -m atoll {OTHERS[name]}"
    if not found.usable:
        return f"{install_command(name)} && {prepare}"
    return "" if is_ready(name) else prepare


def is_ready(name: str) -> bool:
    """Return whether an installed backend has all that it would build or download first."""
    if name == "wasm":
        from atoll.backends.wasm import build  # noqa: PLC0415 - an extra

        return build.find(None) is not None
    from atoll.backends.pyodide import distribution  # noqa: PLC0415 - an extra

    return distribution.installed() is not None


def make_log() -> str:
    """Return a log of 40 services, three of which fail somewhere in the middle."""
    ok = [
        f"2026-01-01T00:00:{n % 60:02d} INFO  service-{n % 40} request served\n"
        for n in range(1200)
    ]
    lines = ok * (LINES // len(ok))
    for place, name in ((400_000, "billing"), (900_001, "search"), (1_500_002, "mail")):
        lines[place] = f"2026-01-01T00:00:00 ERROR {name} connection to db-{place % 7} refused\n"
    return "".join(lines)


def answer(prompt: str) -> str:
    """Stand in for a language model."""
    return "the database refused: " + prompt.partition("connection to ")[2].split()[0]


def show(what: str, code: str, result: atoll.SandboxResult) -> None:
    """Print a cell and its result."""
    print(what)
    for line in code.splitlines():
        print("  >>>", line)
    for line in result.stdout.splitlines():
        print("     ", line)
    if result.value_repr:
        print("      value:", result.value_repr)
    if result.error:
        print("      error:", result.error)
    if result.files:
        print("      files:", ", ".join(result.files))
    print(f"      ({result.kind} in {result.duration_ms:.0f} ms)\n", flush=True)


if __name__ == "__main__":
    main()
