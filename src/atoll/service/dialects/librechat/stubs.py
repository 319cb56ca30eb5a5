"""Guest code that makes LibreChat's tools callable: async functions in Python, commands in bash.

Calls that are made in the same turn of the event loop travel together, so that the client can
carry them out side by side.
"""

from __future__ import annotations

import json
import keyword
import re
from typing import Any

from atoll.service.http.problems import Problem

HOST_CALL = "librechat_tool_calls"
MAX_TOOLS = 100
LONGEST_NAME = 200

_PYTHON = """
class _LibreChatTools:
    def __init__(self):
        self._queue, self._threads = [], None

    def function(self, name, tool, parameters, doc):
        async def call(*args, **kwargs):
            return await self._call(tool, dict(zip(parameters, args), **kwargs))
        call.__name__ = call.__qualname__ = name
        call.__doc__ = doc
        return call

    async def _call(self, tool, given):
        import asyncio
        loop = asyncio.get_running_loop()
        future = loop.create_future()
        if not self._queue:
            loop.call_soon(self._flush, loop)
        self._queue.append(({"name": tool, "input": given}, future))
        return await future

    def _flush(self, loop):
        from concurrent.futures import ThreadPoolExecutor
        if self._threads is None:
            self._threads = ThreadPoolExecutor(8)
        queue, self._queue = self._queue, []
        asked = [one for one, _ in queue]
        answer = loop.run_in_executor(self._threads, call_host, HOST_CALL, asked)
        answer.add_done_callback(lambda done: self._settle(queue, done))

    def _settle(self, queue, done):
        fault = done.exception()
        for at, (_, future) in enumerate(queue):
            if future.done():
                continue
            if fault is not None:
                future.set_exception(fault)
            elif "error" in done.result()[at]:
                future.set_exception(Exception(done.result()[at]["error"]))
            else:
                future.set_result(done.result()[at]["value"])


def _librechat_setup(described):
    tools = _LibreChatTools()
    for name, tool, parameters, doc in described:
        globals()[name] = tools.function(name, tool, parameters, doc)
"""

_BASH = """
def _librechat_bash(functions, names, code, arguments):
    import json, os, select, shutil, subprocess, threading
    folder = "/tmp/.librechat"
    shutil.rmtree(folder, ignore_errors=True)
    os.mkdir(folder)
    os.mkfifo(folder + "/calls")
    incoming = os.open(folder + "/calls", os.O_RDWR)
    def answer(lines):
        asked = []
        for line in lines:
            tool, place = line.split(" ", 1)
            with open(place + "/input") as file:
                text = file.read().strip()
            try:
                given = json.loads(text) if text else {}
            except ValueError:
                given = text
            asked.append({"name": names.get(tool, tool), "input": given})
        try:
            found = call_host(HOST_CALL, asked)
        except Exception as exc:
            found = [{"error": str(exc)}] * len(lines)
        for line, one in zip(lines, found):
            with open(line.split(" ", 1)[1] + "/output", "w") as file:
                value = one.get("error", one.get("value"))
                text = value if isinstance(value, str) else json.dumps(value)
                file.write(("1" if "error" in one else "0") + "\\n" + text + "\\n")
    def serve():
        rest = b""
        while True:
            rest += os.read(incoming, 65536)
            while select.select([incoming], [], [], 0.02)[0]:
                rest += os.read(incoming, 65536)
            *lines, rest = rest.split(b"\\n")
            if b"" in lines:
                return
            named = [one.decode() for one in lines]
            threading.Thread(target=answer, args=(named,), daemon=True).start()
    server = threading.Thread(target=serve, daemon=True)
    server.start()
    path = folder + "/main.sh"
    with open(path, "w") as file:
        file.write(functions + "\\n" + code)
    try:
        ended = subprocess.run(["/bin/bash", path] + arguments).returncode
    finally:
        os.write(incoming, b"\\n")
        server.join(5)
        shutil.rmtree(folder, ignore_errors=True)
    raise SystemExit(128 - ended if ended < 0 else ended)
"""

_BASH_FUNCTION = """
%s() {
  local place ok
  place=$(mktemp -d /tmp/.librechat/call.XXXXXX) && mkfifo "$place/output" || return 1
  printf '%%s' "${1:-}" > "$place/input"
  printf '%%s %%s\\n' %s "$place" > /tmp/.librechat/calls
  { read -r ok; if [ "$ok" = 0 ]; then cat; else cat >&2; fi; } < "$place/output"
  rm -rf "$place"
  [ "$ok" = 0 ]
}
export -f %s
"""

_PLAIN_BASH = """
import subprocess as _subprocess
_ended = _subprocess.run(["/bin/bash", "-c", {code!r}, "bash", *{arguments!r}]).returncode
raise SystemExit(128 - _ended if _ended < 0 else _ended)
"""


def bash_cell(code: str, arguments: list[str]) -> str:
    """Return a cell that runs a bash script, with its output streams apart."""
    return _PLAIN_BASH.format(code=code, arguments=arguments)


def programs(
    language: str, tools: list[dict[str, Any]], code: str, arguments: list[str]
) -> tuple[str, str]:
    """Return the cell that makes the tools callable, and the cell that runs the code."""
    described = [_described(tool, language) for tool in tools]
    names = [name for name, *_ in described]
    if len(set(names)) < len(names):
        raise Problem(400, "invalid", "two tools would have the same name in the code")
    if language == "bash":
        functions = "".join(_BASH_FUNCTION % (name, name, name) for name in names)
        originals = {name: tool for name, tool, _, _ in described}
        setup = f"HOST_CALL = {HOST_CALL!r}\n{_BASH}"
        return setup, f"_librechat_bash({functions!r}, {originals!r}, {code!r}, {arguments!r})"
    setup = f"HOST_CALL = {HOST_CALL!r}\n{_PYTHON}\n_librechat_setup({described!r})"
    return setup, code


def _described(tool: dict[str, Any], language: str) -> tuple[str, str, list[str], str]:
    name = tool.get("name")
    if not isinstance(name, str) or len(name) > LONGEST_NAME:
        raise Problem(400, "invalid", f"a tool has no usable name: {json.dumps(name)[:100]}")
    result = re.sub(r"[^a-zA-Z0-9_]", "", re.sub(r"[-\s]", "_", name))
    result = f"_{result}" if result[:1].isdigit() else result
    if language == "py" and keyword.iskeyword(result):
        result += "_tool"
    if not result.isidentifier():
        raise Problem(400, "invalid", f"a tool has no usable name: {name[:100]!r}")
    schema = tool.get("parameters")
    properties = schema.get("properties") if isinstance(schema, dict) else None
    parameters = [str(name) for name in properties] if isinstance(properties, dict) else []
    return result, name, parameters, str(tool.get("description", ""))
