"""Parts of the shell completions: functions that list fields, the frame for bash, the completions of `tartools`.

Also the lines that a start file of the shell needs to enable them.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

# shell -> the folder of its completions below share/, its start file, and the lines that enable completion there
COMPLETION_INSTRUCTIONS = {
    "bash": ("bash-completion/completions", "~/.bashrc", 'for name in {names}; do\n    . {folder}/"$name"\ndone'),
    "zsh": ("zsh/site-functions", "~/.zshrc", "fpath=({folder} $fpath)\nautoload -Uz compinit && compinit"),
    "fish": ("fish/vendor_completions.d", "~/.config/fish/config.fish", "set -p fish_complete_path {folder}"),
}

# A program for sh that prints the fields of the first archive, or the columns of the first table, among its arguments.
# Only harmless names are printed, since they go into a command line. Only a table makes Tab start Python. Arguments
# with a colon are left out: tar would take host:name for a file on another host.
FIELDS_SCRIPT = r"""for file; do
        case $file in -* | *:*) continue ;; "~/"*) file=$HOME/${file#??} ;; esac
        test -f "$file" || continue
        if head -c 4 "$file" | grep -q PAR1; then
            env tartools completion table "$file" | sed -n -e "s/^\([A-Za-z0-9_.:-][A-Za-z0-9_.:-]*\)\$/\1/p"
        else
            tar -tf "$file" | head -n 200 |
                sed -n -e "s|.*/||" -e "s/^[^.][^.]*\.\([A-Za-z0-9_.-][A-Za-z0-9_.-]*\)\$/\1/p" | sort -u
        fi | grep . && break
    done 2>/dev/null"""
BASH_FIELDS = r"""_tartools_fields() {
    local typed=("${COMP_WORDS[@]:1}")
    sh -c 'PROGRAM' fields "${typed[@]//[\\\"\']/}"
}
""".replace("PROGRAM", FIELDS_SCRIPT)
ZSH_FIELDS = r"""_tartools_fields() {
    local names=$(sh -c 'PROGRAM' fields ${(Q)words[2,-1]})
    [[ -z $names ]] || compadd -- ${(f)names}
}""".replace("PROGRAM", FIELDS_SCRIPT)
FISH_FIELDS = r"""function __tartools_fields
    sh -c 'PROGRAM' fields (commandline -opc)[2..]
end""".replace("PROGRAM", FIELDS_SCRIPT)
BASH = """\
# Completion of {name} for bash. Made by python -m tartools.commands._manual.
{of_fields}_tartools_{name}() {{
    local word=${{COMP_WORDS[COMP_CWORD]}} words='' one
    COMPREPLY=()
    case ${{COMP_WORDS[COMP_CWORD-1]}} in
{values}    *)
        [[ $word == -* ]] || return 0
        words={options} ;;
    esac
    while IFS= read -r one; do
        COMPREPLY+=("$one")
    done < <(compgen -W "$words" -- "$word")
    compopt +o default 2>/dev/null || true  # no names of files here
}}
complete -o default -F _tartools_{name} {name}
"""
# The completions of `tartools`: its first word is the name of a command, whose own completion then takes over.
TARTOOLS_BASH = """\
# Completion of tartools for bash. Made by python -m tartools.commands._manual.
_tartools_tartools() {{
    local word=${{COMP_WORDS[COMP_CWORD]}} name=${{COMP_WORDS[1]}} words='' one
    COMPREPLY=()
    if ((COMP_CWORD == 1)); then
        words={words}
    elif [[ $name == completion ]]; then
        words={shells}
    elif [[ $name == man ]]; then
        words={pages}
    else
        # shellcheck disable=SC1090
        declare -F "_tartools_$name" >/dev/null || . "${{BASH_SOURCE[0]%/*}}/$name" 2>/dev/null || return 0
        COMP_WORDS=("${{COMP_WORDS[@]:1}}")
        COMP_CWORD=$((COMP_CWORD - 1))
        "_tartools_$name"
        return
    fi
    while IFS= read -r one; do
        COMPREPLY+=("$one")
    done < <(compgen -W "$words" -- "$word")
}}
complete -o default -F _tartools_tartools tartools
"""
TARTOOLS_ZSH = """\
#compdef tartools
# Made by python -m tartools.commands._manual.
if (( CURRENT == 2 )); then
  local -a names
  names=(
{described}
  )
  _describe command names
elif [[ $words[2] == completion ]]; then
  compadd -- {shells}
elif [[ $words[2] == man ]]; then
  compadd -- {pages}
else
  shift words
  (( CURRENT-- ))
  _normal
fi
"""
TARTOOLS_FISH = """\
# Made by python -m tartools.commands._manual.
function __tartools_rest
    complete -C (string join ' ' -- (string escape -- (commandline -opc)[2..]) (commandline -ct))
end
complete -c tartools -f
complete -c tartools -n 'test (count (commandline -opc)) -eq 1' -l help -s h -d 'Show the commands and exit.'
complete -c tartools -n 'test (count (commandline -opc)) -eq 1' -l version -d 'Show the version and exit.'
complete -c tartools -n 'test (count (commandline -opc)) -gt 1' -a '(__tartools_rest)'
complete -c tartools -n '__fish_seen_subcommand_from completion' -x -a '{shells}'
complete -c tartools -n '__fish_seen_subcommand_from man' -x -a '{pages}'
"""


def completions_of_tartools(summaries: dict[str, str], page_names: Iterable[str]) -> dict[str, str]:
    """Return the completion files of `tartools` for bash, zsh and fish: text by path in the project.

    The paths: completions/bash/tartools, completions/zsh/_tartools and completions/fish/tartools.fish. *summaries*:
    one-line summary by the first word after `tartools`, the name of a command. *page_names*: commands with a man page;
    "tartools", which has one too, is added.
    """
    pages = " ".join(("tartools", *page_names))
    words, shells = shlex.quote(" ".join((*summaries, "--help", "--version"))), " ".join(COMPLETION_INSTRUCTIONS)
    described = "\n".join(f"    {shlex.quote(f'{name}:{summary}')}" for name, summary in summaries.items())
    bash = TARTOOLS_BASH.format(words=words, shells=shlex.quote(shells), pages=shlex.quote(pages))
    fish = TARTOOLS_FISH.format(shells=shells, pages=pages)
    for name, summary in summaries.items():
        text = summary.replace("\\", "\\\\").replace("'", "\\'")
        fish += f"complete -c tartools -n 'test (count (commandline -opc)) -eq 1' -x -a {name} -d '{text}'\n"
    return {
        "completions/bash/tartools": bash,
        "completions/zsh/_tartools": TARTOOLS_ZSH.format(described=described, shells=shells, pages=pages),
        "completions/fish/tartools.fish": fish,
    }


def columns_of(file: str) -> str:
    """Return the names of fields and value columns of the table *file*, sorted, one a line; "" if it can't be read."""
    from tartools.errors import TarToolsError
    from tartools.tables import source

    try:
        with source.open_table(file) as table:
            names = [*(table.fields or ()), *(name for name in table.names if not name.startswith("__"))]
    except (OSError, TarToolsError):
        return ""
    return "".join(f"{name}\n" for name in sorted(set(names)))


def completion_lines(arguments: Sequence[str], names: Sequence[str]) -> str | None:
    """Return shell lines that enable completion of *names* and `tartools`, after a comment: where to put them.

    *names*: the commands with a script; only bash needs them, zsh and fish get the folder of all completions. None
    unless *arguments* is one word: bash, zsh or fish.
    """
    shell = arguments[0] if len(arguments) == 1 else ""
    if shell not in COMPLETION_INSTRUCTIONS:
        return None
    data_folder, start, lines = COMPLETION_INSTRUCTIONS[shell]
    folder = Path(sys.prefix, "share", data_folder)
    if not any((folder / file).exists() for file in ("tartools", "_tartools", "tartools.fish")):
        folder = Path(__file__).parents[2] / "completions" / shell  # of the clone
    lines_to_add = lines.format(folder=shlex.quote(str(folder)), names=" ".join(("tartools", *names)))
    return f"# Add these lines to {start}, and start a new {shell}:\n{lines_to_add}\n"
