"""Shell completion, `windrow completion bash|zsh`: a script from the command line. Use: `source <(windrow completion bash)`."""

from __future__ import annotations

import argparse
from typing import Any, TextIO

SHELLS = ("bash", "zsh")

_SCRIPT = """\
_windrow() {{
    local word="${{COMP_WORDS[COMP_CWORD]}}" words=""
    if [ "$COMP_CWORD" -eq 1 ]; then
        words="{commands}"
    else
        case "${{COMP_WORDS[1]}}" in
{cases}
        esac
        case "$word" in
            -*) ;;
            *) COMPREPLY=($(compgen -W "${{words//--*/}}" -- "$word") $(compgen -d -- "$word")); return ;;
        esac
    fi
    COMPREPLY=($(compgen -W "$words" -- "$word"))
}}
complete -o filenames -F _windrow windrow
"""


def show(options: argparse.Namespace, out: TextIO) -> int:
    """Print the script."""
    print(script(options.parser, options.shell), end="", file=out)
    return 0


def script(top: argparse.ArgumentParser, shell: str) -> str:
    """Return the completion script of a shell; zsh runs that of bash."""
    commands = _commands(top)
    cases = "\n".join(
        f'            {name}) words="{" ".join(_words(command))}" ;;' for name, command in commands.items()
    )
    text = _SCRIPT.format(commands=" ".join([*commands, "--help", "--version"]), cases=cases)
    return (
        f"autoload -Uz compinit bashcompinit && compinit && bashcompinit\n{text}" if shell == "zsh" else text
    )


def _commands(top: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    for action in top._actions:
        if isinstance(action, argparse._SubParsersAction):
            found: dict[str, Any] = dict(action.choices)
            return found
    return {}


def _words(command: argparse.ArgumentParser) -> list[str]:
    """Return the words that may follow a command: choices of its arguments, then its long options."""
    choices = [str(c) for a in command._actions if not a.option_strings for c in a.choices or ()]
    return choices + [o for a in command._actions for o in a.option_strings if o.startswith("--")]
