"""Descriptions, examples and the exit code table of the command line; `arguments` prints them."""

from __future__ import annotations

SUMMARY = (
    "Run Python code that you do not trust, in a sandbox with limits, next to a large context."
)

EXIT_CODES = """\
exit codes of every command:
  0         success
  1         a program raised an exception; or the answer is no: no daemon runs, a backend is not
            usable, an attack got through, a run of `atoll ask` failed
  2         nothing ran: a bad option, a missing or unreadable file, code that the guard refused,
            or no backend that is strong enough
  3         `atoll ask` reached a limit and gives what it knows
  124       `atoll run` stopped a program at --timeout
  130       Ctrl-C
  137, 152  the program used up its memory, its CPU time
  141       whatever read our output closed it, as `head` does
  128 + N   the program was killed by signal N
  N         `atoll run` passes on sys.exit(N)
"""

DESCRIPTIONS = {
    "run": """\
Run a program in a new sandbox. Its output appears while it runs, and its exit code becomes the
exit code of this command. Standard input goes to the program if it is a pipe or a file.

Options of atoll may stand before or after FILE. Arguments of the program that start with a dash
have to follow `--`.""",
    "repl": """\
Type Python at a prompt; each cell runs in the same sandbox, and variables are kept. Tab completes
names, Ctrl-C stops a running cell, Ctrl-D leaves, and %help lists the commands.""",
    "repl-server": """\
Serve framed requests on stdin, each in a new sandbox, and write framed responses to stdout. This
command is for programs; docs/repl-server.md describes the protocol.""",
    "doctor": """\
Show which backends can run on this machine, how strongly each isolates code, and how its limits
are enforced. The exit code is 0 if a backend with real isolation is usable. With --attack, run a
list of attacks against the chosen backend; the exit code is 0 only if all of them are stopped.""",
    "daemon": """\
A background process that serves warm sandboxes to many clients over a Unix socket. While it runs,
the default backend (`auto`) uses it. The socket is --socket, else $ATOLL_DAEMON_SOCKET, else
~/.rlm/daemon.sock.""",
    "daemon start": """\
Start the daemon in the background. The exit code is 0 if it runs now or ran already, and 1 if it
runs with other options. A file at the socket's path that is not the daemon's is not replaced.""",
    "daemon status": """\
Show how the daemon is doing. The exit code is 0 if it runs and 1 if it does not.""",
    "daemon stop": """\
Stop the daemon and every sandbox in it. The exit code is 0 also if no daemon was running.""",
    "daemon logs": "Print the end of the daemon's log.",
    "wasm": "Build and extend CPython for WebAssembly, which the `wasm` backend runs.",
    "wasm build": """\
Build the CPython component ahead of time (about a minute), so that no sandbox waits for it.""",
    "wasm install": "Install pure Python packages for guests of the `wasm` backend.",
    "wasm status": "Show whether the `wasm` backend is ready; the exit code is 1 if not.",
    "pyodide": "Download and extend Pyodide, which the `pyodide` backend runs.",
    "pyodide setup": """\
Download Pyodide and build its memory image ahead of time, so that no sandbox waits for it.""",
    "pyodide install": "Download packages for guests of the `pyodide` backend.",
    "pyodide status": "Show whether the `pyodide` backend is ready; the exit code is 1 if not.",
    "ask": """\
Ask a model a question about files of any size. The model explores them by code in a sandbox and
can ask other models about parts. The answer goes to stdout, everything else to stderr. The exit
code is 0 for an answer, 3 for an answer that a limit cut short, 1 if the run failed, 2 if it did
not begin, and 130 after Ctrl-C. Text in the files can mislead a model: see docs/rlm.md.""",
    "trace": """\
Show the record of a run of `atoll ask --trace`: what the model was asked, the code it wrote, what
it saw, its sub-calls, and the cost.""",
    "trace show": "Print a record as a tree.",
    "trace html": "Write a record as one HTML page that needs no other file.",
    "completion": """\
Print a script that completes commands, options and file names of atoll in your shell.""",
}

EXAMPLES = {
    "": """\
  atoll run script.py                        run a file
  atoll run -c 'print(6 * 7)'                run a line of code
  cat data.csv | atoll run script.py a b     with a pipe as stdin, and arguments
  atoll run - --context book.txt < a.py      code from stdin, a book as variable `context`
  atoll repl                                 type code at a prompt
  atoll doctor                               what works on this machine
  atoll doctor --attack                      try to break out of the sandbox
  atoll daemon start                         keep warm sandboxes ready
  atoll ask 'Who did it?' --context books    let a model explore files""",
    "run": """\
  atoll run script.py one two                sys.argv is ['script.py', 'one', 'two']
  atoll run script.py -- --verbose           an argument that starts with a dash
  atoll run -c 'import sys; print(sys.argv[1:])' a b
  echo hello | atoll run -c 'print(input().upper())'
  atoll run --files ./data -c 'import os; print(os.listdir("/app"))'
  atoll run --mount ./models:/models --env MODE=fast script.py
  atoll run --timeout 10 --memory 256M --json script.py""",
    "repl": """\
  atoll repl
  atoll repl --context book.txt --memory 2G
  atoll repl --backend wasm --min-isolation virtual""",
    "repl-server": """\
  atoll repl-server
  atoll repl-server --preload 'import polars as pl' --timeout 30""",
    "doctor": """\
  atoll doctor
  atoll doctor --attack --backend native
  atoll doctor --json""",
    "daemon": """\
  atoll daemon start
  atoll daemon status
  atoll daemon stop""",
    "daemon start": """\
  atoll daemon start
  atoll daemon start --tier numeric --max-memory 8G
  atoll daemon start --socket /run/user/1000/atoll.sock --foreground""",
    "daemon status": """\
  atoll daemon status
  atoll daemon status --json""",
    "daemon stop": "  atoll daemon stop",
    "daemon logs": """\
  atoll daemon logs
  atoll daemon logs -n 100 -f""",
    "wasm": """\
  atoll wasm build
  atoll wasm install rich""",
    "wasm build": """\
  atoll wasm build
  atoll wasm build --output python.wasm""",
    "wasm install": "  atoll wasm install rich more-itertools",
    "wasm status": "  atoll wasm status",
    "pyodide": """\
  atoll pyodide setup
  atoll pyodide install numpy""",
    "pyodide setup": "  atoll pyodide setup",
    "pyodide install": "  atoll pyodide install numpy pandas",
    "pyodide status": "  atoll pyodide status",
    "ask": """\
  atoll ask 'Who did it?' --context book.txt --model openai/gpt-4.1-mini
  atoll ask 'Which clauses changed?' --context old.txt --context new.txt --budget-usd 0.50
  atoll ask 'What broke?' --context logs/ --model local/qwen --base-url http://127.0.0.1:8000/v1""",
    "trace": """\
  atoll ask 'Who did it?' --context book.txt --trace run.jsonl
  atoll trace show run.jsonl""",
    "trace show": """\
  atoll trace show run.jsonl
  atoll trace show --full run.jsonl | less -R""",
    "trace html": """\
  atoll trace html run.jsonl
  atoll trace html run.jsonl -o page.html""",
    "completion": """\
  source <(atoll completion bash)                          bash, this session
  atoll completion bash >> ~/.bash_completion              bash, every session
  atoll completion zsh > ~/.zfunc/_atoll                   zsh, with ~/.zfunc in $fpath
  atoll completion fish > ~/.config/fish/completions/atoll.fish""",
}


def epilog(path: str) -> str:
    """Return the examples of a command, such as `daemon start`, to print below its options."""
    found = EXAMPLES.get(path)
    return f"examples:\n{found}\n" if found else ""
