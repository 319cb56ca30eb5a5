"""The package `tools`: one module for each source of tools that the host gave a name.

    from tools import github
    github.create_issue(title="...")
    search_tools("issue label")

SECURITY: a source of tools, such as an MCP server, may be hostile. What it says about its tools is
data here: names that are not Python names are not offered, and no text of it is compiled.
"""

from __future__ import annotations

import sys

from .tools import make

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable

    from ..shared.messages import Names

    Call = Callable[..., Any]

PACKAGE = "tools"
SEARCH = "search_tools"
LONGEST_LINE = 200
_Module = type(sys)


class ToolModules:
    """Offers modules of tools, and finds tools in them."""

    def __init__(self, call: Call) -> None:
        self._call = call
        self._modules: dict[str, ToolModule] = {}

    def offer(self, described: list[Any]) -> list[Any]:
        """Offer the tools that have a module, and no others; return those that have none."""
        plain, members = [], {}  # type: (list[Any], dict[str, dict[str, Names]])
        for tool in described:
            module = tool.get("module") if isinstance(tool, dict) else None
            if not isinstance(module, str) or not module:
                plain.append(tool)
            elif all(_is_name(tool.get(key)) for key in ("module", "member", "name")):
                members.setdefault(module, {})[tool["member"]] = tool
        self._withdraw()
        self._modules = {name: ToolModule(name, some, self._call) for name, some in members.items()}
        if self._modules:
            package: Any = _Module(PACKAGE, "Tools of the host: search_tools() finds them.")
            package.__path__ = []
            sys.modules[PACKAGE] = package
            for name, module in self._modules.items():
                setattr(package, name, module)
                sys.modules[module.__name__] = module
        return plain

    def functions(self) -> Names:
        """Return the functions that are offered beside the modules, by name."""
        return {SEARCH: self.search_tools} if self._modules else {}

    def search_tools(self, query: str = "", limit: int = 10) -> str:
        """Find functions of the package `tools` by words; return how each is called, by line."""
        words = str(query).lower().split()
        matches = []
        for module in self._modules.values():
            for name, tool in module.described.items():
                text = "{} {} {}".format(module.__name__, name, tool.get("doc") or "").lower()
                hits = sum((word in text) + 2 * (word in name.lower()) for word in words)
                if hits or not words:
                    matches.append((-hits, module.__name__, name, tool))
        matches.sort(key=lambda row: row[:3])
        lines = [
            "{}.{}".format(where, _line(name, tool)) for _, where, name, tool in matches[:limit]
        ]
        if len(matches) > limit:
            lines.append("... {} in all: ask for other words".format(len(matches)))
        return "\n".join(lines) or "nothing fits: try other words, or search_tools() for all"

    def _withdraw(self) -> None:
        for module in self._modules.values():
            sys.modules.pop(module.__name__, None)
        if self._modules:
            sys.modules.pop(PACKAGE, None)


class ToolModule(_Module):  # type: ignore[valid-type,misc]
    """One module: a function is made when it is first used."""

    def __init__(self, name: str, described: dict[str, Names], call: Call) -> None:
        super().__init__("{}.{}".format(PACKAGE, name), "{} functions".format(len(described)))
        self.__dict__["described"], self.__dict__["_call"] = described, call

    def __dir__(self) -> list[str]:
        return sorted(self.described)

    def __getattr__(self, name: str) -> Any:
        tool = self.__dict__["described"].get(name)
        if tool is None:
            text = "module {!r} has no function {!r}: search_tools() finds those there are"
            raise AttributeError(text.format(self.__name__, name))
        whole, call = tool["name"], self.__dict__["_call"]

        def relay(_name: str, *args: Any, **kwargs: Any) -> Any:
            return call(whole, *args, **kwargs)

        _, made = make(dict(tool, name=name), relay)
        made.__module__ = self.__name__
        self.__dict__[name] = made
        return made


def _line(name: str, tool: Names) -> str:
    """Return the signature of a function, and the first line of its description."""
    parameters = tool.get("parameters")
    shown = ", ".join(_parameter(given) for given in parameters or ())
    first = (tool.get("doc") or "").strip().partition("\n")[0]
    returns = " -> {}".format(tool["returns"]) if isinstance(tool.get("returns"), str) else ""
    call = "{}({}){}".format(name, "..." if parameters is None else shown, returns)
    return " ".join("{}: {}".format(call, first).split())[:LONGEST_LINE]


def _parameter(given: Names) -> str:
    kind = ": {}".format(given["annotation"]) if "annotation" in given else ""
    optional = " = ..." if "default" in given or "host_default" in given else ""
    stars = "**" if given.get("kind") == 4 else ""
    return "{}{}{}{}".format(stars, given.get("name"), kind, optional)


def _is_name(text: Any) -> bool:
    return isinstance(text, str) and text.isidentifier() and not text.startswith("__")
