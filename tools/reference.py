"""The pages of reference that the site has beside docs/: the Python API, and the HTTP API.

mkdocstrings makes the first from docstrings and signatures; each name that `atoll` exports stands
on one page. The second is made here from the document that the service offers as /openapi.json.
"""

from __future__ import annotations

import json
import re
from typing import Any

PYTHON = {
    "Sandboxes": """
        create_sandbox SyncSandbox Sandbox BaseSandbox SandboxConfig ExecutionPolicy Mount
        Isolation Capability SandboxResult Outcome Display Artifact Variable Variables
        Opaque Context Tool tool MCPTools SandboxLogger
    """,
    "Files, states, processes": """
        FileData FileError FileInfo GrepMatch WriteResult EditResult UploadResult
        DownloadResult StateInfo describe_state StateStore SqliteStateStore SyncProcess
        Process ProcessInfo OutputPiece run_program ProgramRules ProgramEnd LocalSandbox
        LocalSandboxOptions ShellSandbox SandboxBackendProtocol ExecuteResponse
    """,
    "Warm starts, network, backends": """
        Pool PoolSettings NetworkPolicy NetworkRequest NetworkUse WebPolicy
        NativePythonSandbox DaemonClientSandbox GvisorSandbox PythonSandbox
        run_untrusted_python PyodideSandbox DirectPyodideSandbox REPLExecutor
        SyncREPLExecutor REPLResponse
    """,
    "Questions and agents": """
        RLM RLMConfig Session Answer Ended Budget BudgetError Model ScriptedModel Recorder
        Replay Message Completion Usage Evidence Coverage REPLEnvironment EnvironmentConfig
        REPLConfig Turn Final ChainReport Invocation Approval Origin Exploration
        ExplorationLog ResearchContext EpisodicMemory Trajectory Event
    """,
}
"""The names of each page; errors have a page of their own, and are found by their class."""
ERRORS = """# Errors

By text and cause: [troubleshooting](../troubleshooting.md).

::: atoll.errors
"""
HTTP_HEAD = """# HTTP reference

Made from `/openapi.json`, which every service offers, and from which clients can be generated.
[The service](../service.md) explains it with examples. The APIs of other products are described on
their pages: [E2B](../integrations/e2b.md), [LibreChat](../librechat.md),
[Jupyter](../integrations/gateway.md), [SandboxFusion](../integrations/sandboxfusion.md).
"""
OWN = "/api/v1"


def python_page(title: str) -> str:
    """Return the page of some names, for mkdocstrings."""
    entries = "\n".join(f"::: atoll.{name}\n" for name in PYTHON[title].split())
    return f"# {title}\n\nMade from the docstrings. The examples are in the guides.\n\n{entries}"


def http_page(document: dict[str, Any]) -> str:
    """Return the operations of the service's own API, and the shapes that they name."""
    shapes = document["components"]["schemas"]
    lines = [HTTP_HEAD]
    own = {path: some for path, some in document["paths"].items() if path.startswith(OWN)}
    for path, operations in own.items():
        for method, operation in operations.items():
            lines += _operation(method, path, operation)
    lines += ["## Shapes", ""]
    for name in sorted(_named(own, shapes)):
        about = shapes[name].get("description", "").split("\n\n")[0]
        lines += [f"### {name}", "", about, "", *_fields(shapes[name])]
    return "\n".join(lines)


def _named(part: Any, shapes: dict[str, Any]) -> set[str]:
    """Return the shapes that a part of the document names, and those that these name."""
    known: set[str] = set()
    parts = [json.dumps(part)]
    while parts:
        new = set(re.findall(r"#/components/schemas/(\w+)", parts.pop())) - known
        known |= new
        parts += [json.dumps(shapes[name]) for name in new]
    return known


def _operation(method: str, path: str, operation: dict[str, Any]) -> list[str]:
    """Return the section of one operation."""
    lines = [f"## {method.upper()} {path.removeprefix(OWN)}", "", operation["summary"], ""]
    facts = []
    for scopes in operation.get("security", []):
        [names] = scopes.values()
        facts.append(("needs", "a key" + (f" with the scope `{names[0]}`" if names else "")))
    for parameter in operation["parameters"]:
        must = "" if parameter["required"] or parameter["in"] == "path" else ", may be left out"
        facts.append((f"`{parameter['name']}`", f"in the {parameter['in']}{must}"))
    if body := operation.get("requestBody"):
        facts.append(("body", _content(body["content"])))
    for status, answer in operation["responses"].items():
        if status != "default":
            facts.append((status, _content(answer.get("content", {})) or answer["description"]))
    return [*lines, "| | |", "| --- | --- |", *(f"| {a} | {b} |" for a, b in facts), ""]


def _content(content: dict[str, Any]) -> str:
    """Return what a body holds, for each of its media types."""
    return "; ".join(
        f"{_type(kind['schema'])}" if kind.get("schema") else f"`{media}`"
        for media, kind in content.items()
    )


def _fields(shape: dict[str, Any]) -> list[str]:
    """Return the table of a shape's fields."""
    if "properties" not in shape:
        return [_type(shape), ""]
    needed = shape.get("required", [])
    rows = [
        f"| `{name}` | {_type(kind)} | {'needed' if name in needed else _default(kind)} |"
        for name, kind in shape["properties"].items()
    ]
    return ["| field | type | |", "| --- | --- | --- |", *rows, ""]


def _default(kind: dict[str, Any]) -> str:
    default = kind.get("default")
    return f"`{default}`" if default not in (None, [], {}) else ""


def _type(kind: dict[str, Any]) -> str:
    """Return a schema in words; shapes become links."""
    if name := kind.get("$ref", "").rpartition("/")[2]:
        return f"[{name}](#{name.lower()})"
    for several in ("anyOf", "oneOf"):
        if several in kind:
            return " or ".join(dict.fromkeys(_type(one) for one in kind[several]))
    if "enum" in kind or "const" in kind:
        return ", ".join(f"`{value}`" for value in kind.get("enum", [kind.get("const")]))
    if kind.get("type") == "array":
        return f"list of {_type(kind['items'])}" if kind.get("items") else "list"
    names = {"null": "null", "object": "object"}
    named = kind.get("type", "any value")
    return names.get(named, named) if isinstance(named, str) else " or ".join(named)
