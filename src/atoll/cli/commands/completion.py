"""`atoll completion`: prints a completion script for bash, zsh or fish, made from the parser."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from typing import TYPE_CHECKING

from atoll.cli import arguments

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Iterator

FILE_WORDS = ("FILE", "PATH", "DIR", "OUT", "SRC:DST[:rw]")
"""What an argument is called that takes the name of a file or folder."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """An option as it is completed: its names, its text, and what its value can be."""

    names: tuple[str, ...]
    text: str
    takes_value: bool
    files: bool
    choices: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """A command as it is completed: `path` is its full name, such as `daemon start`."""

    path: str
    children: dict[str, str]
    """Names of the commands below it, and their help."""
    options: tuple[Option, ...]
    words: tuple[str, ...]
    """Choices of its positional argument."""
    files: bool
    """Whether a positional argument is the name of a file."""


def command(args: Namespace) -> int:
    """Print the script for the shell that was named; return the exit code."""
    print({"bash": bash, "zsh": zsh, "fish": fish}[args.shell](), end="")
    return 0


def commands() -> list[Command]:
    """Return every command of the command line, the top level first."""
    return list(_walk("", arguments.parser()))


def bash() -> str:
    """Return the script for bash."""
    body = "\n".join(_posix_cases("compgen_files", "compgen_words", "        "))
    return _BASH.replace("@PATHS@", _paths()).replace("@CASES@", body)


def zsh() -> str:
    """Return the script for zsh."""
    body = "\n".join(_posix_cases("_files", "compadd --", "        "))
    return _ZSH.replace("@PATHS@", _paths()).replace("@CASES@", body)


def fish() -> str:
    """Return the script for fish."""
    known = " ".join(_quote(entry.path) for entry in commands() if entry.path)
    lines = [_FISH.replace("@PATHS@", known)]
    for entry in commands():
        at = f"complete -c atoll -n \"__atoll_at '{entry.path}'\""
        lines += [f"{at} -f -a {name} -d {_quote(text)}" for name, text in entry.children.items()]
        lines += [f"{at} -f -a {_quote(' '.join(entry.words))}"] if entry.words else []
        lines += [f"{at} -F"] if entry.files else []
        lines += [f"{at} {_fish_option(option)}" for option in entry.options]
    return "\n".join(lines) + "\n"


def _walk(path: str, parser: argparse.ArgumentParser) -> Iterator[Command]:
    below: dict[str, argparse.ArgumentParser] = {}
    texts: dict[str, str] = {}
    positional: list[argparse.Action] = []
    options: list[Option] = []
    for action in parser._actions:  # noqa: SLF001 - argparse has no public way to its arguments
        if isinstance(action, argparse._SubParsersAction):  # noqa: SLF001
            below = dict(action.choices)
            texts = {choice.dest: choice.help or "" for choice in action._choices_actions}  # noqa: SLF001
        elif action.option_strings:
            options.append(_option(action))
        else:
            positional.append(action)
    words = tuple(str(word) for argument in positional for word in argument.choices or ())
    yield Command(
        path=path,
        children=texts,
        options=tuple(options),
        words=words,
        files=any(argument.metavar in FILE_WORDS for argument in positional),
    )
    for name, child in below.items():
        yield from _walk(f"{path} {name}".strip(), child)


def _option(action: argparse.Action) -> Option:
    choices = tuple(map(str, action.choices or ()))
    return Option(
        names=tuple(action.option_strings),
        text=(action.help or "") % {"choices": ", ".join(choices)},
        takes_value=action.nargs != 0,
        files=action.metavar in FILE_WORDS,
        choices=choices,
    )


def _posix_cases(files: str, words: str, indent: str) -> Iterator[str]:
    """Yield cases of "PATH|previous word" and of "PATH|", which bash and zsh share."""
    for entry in commands():
        for option in entry.options:
            if option.takes_value:
                pattern = " | ".join(f'"{entry.path}|{name}"' for name in option.names)
                values = " ".join(option.choices)
                act = files if option.files else f"{words} {values}" if values else ":"
                yield f"{indent}{pattern}) {act} ;;"
    for entry in commands():
        names = [*entry.children, *entry.words, *(n for opt in entry.options for n in opt.names)]
        more = f"; {files}" if entry.files else ""
        yield f'{indent}"{entry.path}|"*) {words} {" ".join(names)}{more} ;;'


def _paths() -> str:
    """Return the full names of all commands as a pattern of a shell's `case`."""
    return " | ".join(f'"{entry.path}"' for entry in commands() if entry.path)


def _fish_option(option: Option) -> str:
    names = [f"-l {n[2:]}" if n.startswith("--") else f"-s {n[1:]}" for n in option.names]
    value = "-r -F" if option.files else "-x" if option.takes_value else "-f"
    choices = f" -a {_quote(' '.join(option.choices))}" if option.choices else ""
    return f"{' '.join(names)} {value}{choices} -d {_quote(option.text)}"


def _quote(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


_BASH = """\
# bash completion for atoll. Load it with: source <(atoll completion bash)
_atoll() {
    local cur="${COMP_WORDS[COMP_CWORD]}" prev="${COMP_WORDS[COMP_CWORD-1]}" at="" word
    compgen_words() { mapfile -t -O "${#COMPREPLY[@]}" COMPREPLY < <(compgen -W "$*" -- "$cur"); }
    compgen_files() {
        compopt -o filenames 2>/dev/null
        mapfile -t -O "${#COMPREPLY[@]}" COMPREPLY < <(compgen -f -- "$cur")
    }
    COMPREPLY=()
    for word in "${COMP_WORDS[@]:1:COMP_CWORD-1}"; do
        case "${at:+$at }$word" in
        @PATHS@) at="${at:+$at }$word" ;;
        esac
    done
    case "$at|$prev" in
@CASES@
    esac
    unset -f compgen_words compgen_files
}
complete -F _atoll atoll
"""

_ZSH = """\
#compdef atoll
# zsh completion for atoll. Load it with: source <(atoll completion zsh)
_atoll() {
    local at="" word
    for word in "${(@)words[2,CURRENT-1]}"; do
        case "${at:+$at }$word" in
        @PATHS@) at="${at:+$at }$word" ;;
        esac
    done
    case "$at|${words[CURRENT-1]}" in
@CASES@
    esac
}
if [[ "${funcstack[1]}" = _atoll ]]; then
    _atoll "$@"
else
    compdef _atoll atoll
fi
"""

_FISH = """\
# fish completion for atoll. Load it with: atoll completion fish | source
function __atoll_at
    set -l at
    for word in (commandline -opc)[2..-1]
        set -l longer (string join -- ' ' $at $word)
        if contains -- "$longer" @PATHS@
            set at $longer
        end
    end
    test "$at" = "$argv[1]"
end
complete -c atoll -f"""
