"""The main job in one screen: model-written code explores a large context from inside a jail.

    make demo

The model's part is played by the text in SNIPPETS, as a model would send it; the sub-questions
it asks by llm_query are answered by a function here, where a real program would call a model.
"""

from __future__ import annotations

import time

import atoll

LINES = 2_000_000
BACKENDS = ("native", "wasm", "pyodide")
SNIPPETS = (
    "import re\n"
    "print(f'{len(context):,} characters, {count_lines():,} lines')\n"
    "errors = search_context(r'ERROR .*', window=0)\n"
    "services = sorted({hit['match'].split()[1] for hit in errors})\n"
    "print('services with errors:', services)",
    "notes = batch_llm_query([f'Why did {name} fail? ' + quote_match(f'ERROR {name}.*')"
    " for name in services])\n"
    "for name, note in zip(services, notes): print(f'{name}: {note}')",
    "open('report.md', 'w').write('\\n'.join(f'- {n}: {t}' for n, t in zip(services, notes)))\n"
    "len(services)",
    "import socket; socket.create_connection(('127.0.0.1', 22), 1)",
    "open('/etc/shadow').read()",
    "while True: pass",
    "services",
)


def main() -> None:
    """Run the snippets one after the other and show what comes back."""
    text = make_log()
    started = time.perf_counter()
    with atoll.create_sandbox(context=text, on_llm_query=answer, timeout_ms=2000) as box:
        took = (time.perf_counter() - started) * 1000
        megabytes = len(text) / 1e6
        print(f"A sandbox is up in {took:.0f} ms with a context of {megabytes:.0f} MB beside it;")
        print(f"backend {box.backend}, isolation {box.isolation.name.lower()}.\n")
        for code in SNIPPETS:
            show(code, box.execute(code))
        print("The report is a file of the guest's, read from outside:")
        print(box.files.read("report.md"))
        if atoll.Capability.SHELL in box.capabilities:
            print("and a shell in the same jail: wc -l report.md; id -un; hostname")
            print(" ", *box.shell("wc -l report.md; id -un; hostname").output.splitlines())
    show_backends()


def show_backends() -> None:
    """The same cell behind other walls; what a backend needs is built when it is first used."""
    print("\nThe same cell in every backend:")
    for name in BACKENDS:
        started = time.perf_counter()
        with atoll.create_sandbox(backend=name, timeout_ms=20_000) as box:
            result = box.execute("import sys; f'Python {sys.version.split()[0]} on {sys.platform}'")
            took = time.perf_counter() - started
            print(f"  {name:8} {box.isolation.name.lower():8} {result.value} [{took:.2f} s]")


def make_log() -> str:
    """A log of some services, three of which fail somewhere in the middle."""
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


def show(code: str, result: atoll.SandboxResult) -> None:
    """One cell and its outcome."""
    for line in code.splitlines():
        print("  >>>", line)
    for line in result.stdout.splitlines():
        print("     ", line)
    if result.value_repr:
        print("      =", result.value_repr)
    if result.error:
        print("      !", result.error)
    if result.files:
        print("      files:", ", ".join(result.files))
    print(f"      [{result.kind}, {result.duration_ms:.1f} ms]\n")


if __name__ == "__main__":
    main()
