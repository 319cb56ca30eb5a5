"""The driver against workers that lie, and what a worker of Deno's may do: nothing.

Deno runs here without a jail, so that what holds is Deno's own wall and the driver.
"""

from __future__ import annotations

import json
import shutil
import subprocess

import pytest

from atoll.backends.pyodide import deno, distribution
from atoll.backends.pyodide.image import SCRIPTS

REQUEST = {"jsonrpc": "2.0", "id": "right", "method": "execute", "params": {"code": "1"}}
ANSWER = '{"jsonrpc":"2.0","id":"right","result":{}}'


class Driver:
    """Deno with the real driver and a worker of the test's own."""

    def __init__(self, folder, worker):
        shutil.copytree(SCRIPTS, folder / "js")
        (folder / "js" / "worker.mjs").write_text(worker)
        pyodide = distribution.setup().folder
        settings = {
            "useWorker": True,
            "pyodide": str(pyodide),
            "snapshot": None,
            "folders": [],
            "wheels": [],
            "limits": {"disk": None, "fileSize": None, "openFiles": 64},
        }
        arguments = deno.arguments(
            f"{folder}/js/driver.mjs", reads=[str(pyodide), f"{folder}/js"], v8=[]
        )
        self.process = subprocess.Popen(
            [deno.find().path, *arguments, json.dumps(settings)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={"DENO_DIR": str(folder), "NO_COLOR": "1"},
            cwd=folder,
        )

    def talk(self, *messages):
        """All that it says to these messages, until it ends."""
        data = b"".join(json.dumps(one).encode() + b"\n" for one in messages)
        self.process.stdin.write(data)
        self.process.stdin.flush()
        lines = []
        while line := self.process.stdout.readline():
            lines.append(json.loads(line))
            if lines[-1].get("id") == "right" and "result" in lines[-1]:
                break
        self.process.stdin.close()
        words = self.process.stderr.read().decode()
        return lines, self.process.wait(20), words

    def close(self):
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout, self.process.stderr):
            pipe.close()


@pytest.fixture
def drive(tmp_path):
    opened = []

    def make(worker):
        opened.append(Driver(tmp_path, worker))
        return opened[-1]

    yield make
    for one in opened:
        one.close()


def lying(body):
    """A worker that comes up and does `body` for each request."""
    return (
        "const post = self.postMessage.bind(self);\n"
        "self.addEventListener('message', ({ data }) => {\n"
        "  if (data.type === 'start') post({ type: 'ready' });\n"
        f"  else {{ {body} }}\n"
        "});\n"
    )


LIES = {
    "no object": ("post(5)", "a message that is no object"),
    "null": ("post(null)", "a message that is no object"),
    "no kind": ("post({ type: 'shutdown' })", "a message of no known kind"),
    "inherited kind": ("post({ type: 'constructor' })", "a message of no known kind"),
    "ready again": ("post({ type: 'ready' })", "ready twice"),
    "another's answer": (
        'post({ type: "answer", line: \'{"id":"other","result":1}\' })',
        "an answer that nobody waits for",
    ),
    "an answer that is a request": (
        'post({ type: "answer", line: \'{"id":"right","method":"host.call"}\' })',
        "an answer that nobody waits for",
    ),
    "two lines in one": (
        'post({ type: "answer", line: \'{"id":"right"}\\n{"id":"x"}\' })',
        "a line that is none",
    ),
    "no text": ("post({ type: 'answer', line: { toString: 1 } })", "a line that is none"),
    "no JSON": ("post({ type: 'answer', line: '{' })", "a line that is no message"),
    "a huge line": ("post({ type: 'answer', line: 'x'.repeat(34 << 20) })", "a line that is none"),
    "an unknown call": (
        'post({ type: "call", line: \'{"id":"g1","method":"initialize"}\' })',
        "a call of no known method",
    ),
    "two calls": (
        (
            'const line = \'{"id":"g1","method":"host.call","params":{}}\';'
            "post({ type: 'call', line }); post({ type: 'call', line });"
        ),
        "a call that is not its turn",
    ),
    "output of no stream": (
        "post({ type: 'output', stream: 4, text: '9' })",
        "output of no stream",
    ),
    "output that is no bytes": (
        "post({ type: 'output', stream: 1, text: '\\u0100' })",
        "output that is no text",
    ),
    "too much at once": (
        "post({ type: 'output', stream: 1, text: 'x'.repeat(9 << 20) })",
        "output that is no text",
    ),
    "an end that is no text": (
        "let all = []; for (let n = 0; n < 40; n++) all = [all, all]; post({ type: 'end', why: all })",
        "an end of no known shape",
    ),
    "half a byte": ("post({ type: 'take', size: 0.5 })", "bytes asked for by no number"),
}


@pytest.mark.parametrize(("body", "why"), LIES.values(), ids=LIES)
def test_a_worker_that_lies_is_the_end(drive, body, why):
    lines, code, words = drive(lying(body)).talk(REQUEST)
    assert code == 134
    assert why in words
    assert not [line for line in lines if "result" in line]


def test_what_is_said_before_anybody_asked_is_the_end(drive):
    worker = lying("") + f"post({{ type: 'answer', line: '{ANSWER}' }});"
    _, code, words = drive(worker).talk(REQUEST)
    assert (code, words.strip()) == (134, "an answer that nobody waits for")


def test_a_second_answer_is_the_end(drive):
    driver = drive(lying(f"for (const n of [1, 2]) post({{ type: 'answer', line: '{ANSWER}' }});"))
    lines, code, words = driver.talk(REQUEST)
    assert (code, words.strip()) == (134, "an answer that nobody waits for")
    assert lines[-1] == json.loads(ANSWER)


def test_an_honest_worker_is_heard(drive):
    body = (
        "post({ type: 'output', stream: 1, text: 'a\\u00ff\\n' });"
        f"post({{ type: 'answer', line: '{ANSWER}' }});"
    )
    lines, code, _ = drive(lying(body)).talk(REQUEST)
    output = [line["params"] for line in lines if line.get("method") == "output"]
    assert output == [{"stream": 1, "text": "a\xff\n"}]
    assert (lines[-1], code) == (json.loads(ANSWER), 0)


ATTEMPTS = {
    "read": "Deno.readTextFileSync('/etc/passwd')",
    "read its own script": "Deno.readTextFileSync(new URL(import.meta.url))",
    "write": "Deno.writeTextFileSync('/tmp/x', 'x')",
    "environment": "Deno.env.toObject()",
    "program": "new Deno.Command('id').outputSync()",
    "library": "Deno.dlopen('libc.so.6', {})",
    "connect": "await Deno.connect({ port: 22 })",
    "listen": "Deno.listen({ port: 0 })",
    "fetch": "await fetch('http://127.0.0.1:22/')",
    "kill": "Deno.kill(Deno.ppid, 'SIGTERM')",
    "host name": "Deno.hostname()",
    "node's files": "(await import('node:fs')).readFileSync('/etc/passwd')",
    "a builtin module": "process.getBuiltinModule('fs').readFileSync('/etc/passwd')",
    "node's programs": "(await import('node:child_process')).execSync('id')",
    "a file as a module": "await import('file://@@OUTSIDE@@/module.mjs')",
    "a file as text": "await import('file://@@OUTSIDE@@/text.json', { with: { type: 'json' } })",
    "a remote module": "await import('http://127.0.0.1:22/x.js')",
    "an npm package": "await import('npm:left-pad')",
    "more permission": "if ((await Deno.permissions.request({ name: 'read' })).state !== 'granted') throw new Error('denied')",
    "eval": "eval('1')",
    "function": "new Function('return 1')()",
    "a nested worker that reads": (
        "await new Promise((good, bad) => { const source = `try { Deno.readTextFileSync('/etc/passwd');"
        " postMessage(true) } catch { postMessage(false) }`;"
        " const one = new Worker(URL.createObjectURL(new Blob([source])), { type: 'module', deno: { permissions: 'inherit' } });"
        " one.onmessage = ({ data }) => data ? good() : bad(new Error('denied')); one.onerror = bad; })"
    ),
    "a nested worker that asks for more": (
        "new Worker('data:text/javascript,', { type: 'module', deno: { permissions: { read: true } } })"
    ),
}


@pytest.mark.parametrize("attempt", ATTEMPTS.values(), ids=ATTEMPTS)
def test_a_worker_may_do_nothing_even_with_all_of_javascript(drive, tmp_path, attempt):
    for name, text in (("module.mjs", "export const x = 1;"), ("text.json", "{}")):
        (tmp_path / name).write_text(text)
    attempt = attempt.replace("@@OUTSIDE@@", str(tmp_path))
    body = (
        f"(async () => {{ try {{ {attempt}; return 'DONE'; }} catch (error) {{ return 'no'; }} }})()"
        ".then((said) => post({ type: 'answer', line:"
        ' JSON.stringify({ jsonrpc: "2.0", id: "right", result: said }) }));'
    )
    lines, _, words = drive(lying(body)).talk(REQUEST)
    assert lines[-1].get("result") == "no", (lines, words)


def test_polluted_prototypes_stay_in_the_worker(drive):
    body = (
        "Object.prototype.type = 'ready'; Array.prototype.includes = () => true;"
        "JSON.parse = () => ({}); String.prototype.slice = () => '';"
        f"post(Object.assign(Object.create(null), {{ type: 'answer', line: '{ANSWER}' }}));"
    )
    lines, code, _ = drive(lying(body)).talk(REQUEST)
    assert (lines[-1], code) == (json.loads(ANSWER), 0)


@pytest.mark.spec("R0.6")
def test_an_interrupt_is_a_two_in_the_shared_buffer(drive):
    """As `setInterruptBuffer` wants it: the worker is given the buffer and looks at it."""
    worker = (
        "const post = self.postMessage.bind(self);\n"
        "let cell;\n"
        "self.addEventListener('message', ({ data }) => {\n"
        "  if (data.type === 'start') {\n"
        "    cell = new Int32Array(data.cells.interrupt); post({ type: 'ready' }); return;\n"
        "  }\n"
        "  post({ type: 'output', stream: 1, text: 'waits' });\n"
        "  Atomics.wait(cell, 0, 0);\n"
        "  post({ type: 'answer', line: JSON.stringify({ id: 'right', result: cell[0] }) });\n"
        "});\n"
    )
    driver = drive(worker)
    driver.process.stdin.write(json.dumps(REQUEST).encode() + b"\ninterrupt\n")
    lines, _, _ = driver.talk()
    assert lines[-1]["result"] == 2


def test_an_interrupt_without_a_request_is_nothing(drive):
    driver = drive(lying(f"post({{ type: 'answer', line: '{ANSWER}' }});"))
    assert json.loads(driver.process.stdout.readline())["method"] == "ready"
    driver.process.stdin.write(b"interrupt\n")
    lines, code, _ = driver.talk(REQUEST)
    assert (lines[-1], code) == (json.loads(ANSWER), 0)
