"""What completions are made of: the functions that list fields, and the frame of those for bash."""

from __future__ import annotations

# Names of fields on stdout; $file is an archive. Only harmless ones: they go into a command line.
LISTING = r"""tar -tf "$file" 2>/dev/null | head -n 200 |
        sed -n -e 's|.*/||' -e 's/^[^.][^.]*\.\([A-Za-z0-9_.-][A-Za-z0-9_.-]*\)$/\1/p' | sort -u"""
BASH = """\
# Completion of {name} for bash. Made by python -m tartools.commands._manual.
_tartools_fields() {{
    local file names
    for file in "${{COMP_WORDS[@]:1}}"; do
        file=${{file//[\\\\\\"\\']/}}  # words are as they were typed
        [[ $file != [~]/* ]] || file=$HOME/${{file:2}}
        [[ -f $file && $file != -* && $file != *:* ]] || continue  # of a name with a colon tar makes a host
        names=$({listing})
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
        names=$({listing})
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
        set -l names ({listing})
        test -n "$names"; or continue  # no archive
        printf '%s\\n' $names
        return
    end
end"""
