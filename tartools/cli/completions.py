"""What completions are made of: the functions that list fields, the frame of those for bash, those of `tartools`.

Also what a person adds to a start file of the shell to switch them on.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

# shell -> the folder of its completions below share/, its start file, and what switches completion on there
SWITCHED = {
    "bash": ("bash-completion/completions", "~/.bashrc", 'for name in {names}; do\n    . {folder}/"$name"\ndone'),
    "zsh": ("zsh/site-functions", "~/.zshrc", "fpath=({folder} $fpath)\nautoload -Uz compinit && compinit"),
    "fish": ("fish/vendor_completions.d", "~/.config/fish/config.fish", "set -p fish_complete_path {folder}"),
}

# Names of fields on stdout; $file is an archive. Only harmless ones: they go into a command line.
LISTING = r"""tar -tf "$file" 2>/dev/null | head -n 200 |
        sed -n -e 's|.*/||' -e 's/^[^.][^.]*\.\([A-Za-z0-9_.-][A-Za-z0-9_.-]*\)$/\1/p' | sort -u"""
# Whether $file is a table, and names of its columns: only then does Tab start Python.
IS_TABLE = r"""head -c 4 "$file" 2>/dev/null | grep -q PAR1"""
COLUMNS = r"""env tartools completion table "$file" 2>/dev/null |
        sed -n -e 's/^\([A-Za-z0-9_.:-][A-Za-z0-9_.:-]*\)$/\1/p'"""
BASH = """\
# Completion of {name} for bash. Made by python -m tartools.commands._manual.
_tartools_fields() {{
    local file names
    for file in "${{COMP_WORDS[@]:1}}"; do
        file=${{file//[\\\\\\"\\']/}}  # words are as they were typed
        [[ $file != [~]/* ]] || file=$HOME/${{file:2}}
        [[ -f $file && $file != -* && $file != *:* ]] || continue  # of a name with a colon tar makes a host
        if {is_table}; then
            names=$({columns})
        else
            names=$({listing})
        fi
        [[ $names ]] || continue  # no archive
        echo "$names"
        return
    done
}}
_tartools_{name}() {{
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
ZSH_FIELDS = """\
_tartools_fields() {{
    local file names
    for file in ${{(Q)words[2,-1]}}; do  # as they were typed, without quotes
        [[ $file != [~]/* ]] || file=$HOME/${{file[3,-1]}}
        [[ -f $file && $file != -* && $file != *:* ]] || continue  # of a name with a colon tar makes a host
        if {is_table}; then
            names=$({columns})
        else
            names=$({listing})
        fi
        [[ -n $names ]] || continue  # no archive
        compadd -- ${{(f)names}}
        return
    done
}}
"""
FISH_FIELDS = """\
function __tartools_fields
    for file in (commandline -opc)[2..]
        set file (string replace -r -- '^~/' "$HOME/" $file)
        test -f "$file"; and not string match -q -r -- '^-|:' "$file"; or continue  # tar makes a host of host:name
        set -l names
        if {is_table}
            set names ({columns})
        else
            set names ({listing})
        end
        test -n "$names"; or continue  # no archive
        printf '%s\\n' $names
        return
    end
end"""

# Those of `tartools`, whose first word is the name of a command; what follows is completed as for that command.
TARTOOLS_BASH = """\
# Completion of tartools for bash. Made by python -m tartools.commands._manual.
_tartools_tartools() {{
    local word=${{COMP_WORDS[COMP_CWORD]}} name=${{COMP_WORDS[1]}} words='' one
    COMPREPLY=()
    if ((COMP_CWORD == 1)); then
        words={words}
    elif [[ $name == completion ]]; then
        words={shells}
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
"""


def of_tartools(summaries: dict[str, str]) -> dict[str, str]:
    """Return the completions of `tartools`, by their paths. *summaries* are those of the words that it takes first."""
    words, shells = shlex.quote(" ".join((*summaries, "--help", "--version"))), " ".join(SWITCHED)
    described = "\n".join(f"    {shlex.quote(f'{name}:{summary}')}" for name, summary in summaries.items())
    fish = TARTOOLS_FISH.format(shells=shells)
    for name, summary in summaries.items():
        text = summary.replace("\\", "\\\\").replace("'", "\\'")
        fish += f"complete -c tartools -n 'test (count (commandline -opc)) -eq 1' -x -a {name} -d '{text}'\n"
    return {
        "completions/bash/tartools": TARTOOLS_BASH.format(words=words, shells=shlex.quote(shells)),
        "completions/zsh/_tartools": TARTOOLS_ZSH.format(described=described, shells=shells),
        "completions/fish/tartools.fish": fish,
    }


def columns_of(file: str) -> str:
    """Return the names of the fields and columns of values of the table *file*, one a line; "" if that fails."""
    from tartools.errors import TarToolsError
    from tartools.tables import source

    try:
        with source.opened(file) as table:
            names = [*(table.fields or ()), *(name for name in table.names if not name.startswith("__"))]
    except (OSError, TarToolsError):
        return ""
    return "".join(f"{name}\n" for name in sorted(set(names)))


def switched_on(arguments: Sequence[str], names: Sequence[str]) -> str | None:
    """Return what switches completion of *names* and `tartools` on, with a comment that says where to write it.

    None unless *arguments* are the name of one shell.
    """
    shell = arguments[0] if len(arguments) == 1 else ""
    if shell not in SWITCHED:
        return None
    inside, start, lines = SWITCHED[shell]
    folder = Path(sys.prefix, "share", inside)
    if not any((folder / file).exists() for file in ("tartools", "_tartools", "tartools.fish")):
        folder = Path(__file__).parents[2] / "completions" / shell  # of the clone
    what = lines.format(folder=shlex.quote(str(folder)), names=" ".join(("tartools", *names)))
    return f"# Add these lines to {start}, and start a new {shell}:\n{what}\n"
