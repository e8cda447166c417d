# Made by python -m tartools.manual.
function __tartools_fields
    for file in (commandline -opc)[2..]
        set file (string replace -r -- '^~/' "$HOME/" $file)
        test -f "$file"; and not string match -q -r -- '^-|:' "$file"; or continue  # tar makes a host of host:name
        set -l names (tar -tf "$file" 2>/dev/null | head -n 200 |
        sed -n -e 's|.*/||' -e 's/^[^.][^.]*\.\([A-Za-z0-9_.-][A-Za-z0-9_.-]*\)$/\1/p' | sort -u)
        test -n "$names"; or continue  # no archive
        printf '%s\n' $names
        return
    end
end
complete -c tarfirst -s T -l files-from -r -F -d 'Read more names of shards from FILE, one a line.'
complete -c tarfirst -s 0 -l null -d 'Names in -T files end with NUL, not newline.'
complete -c tarfirst -l lax -d 'Accept shards that have no end-of-archive block.'
complete -c tarfirst -l skip-special -d 'Leave out links, devices and sparse members without a word.'
complete -c tarfirst -s f -l fields -x -a '(__tartools_fields)' -d 'The field to write: FIELD, or the first there is of a;b.'
complete -c tarfirst -s S -l select -x -d 'Samples of which EXPR is true.'
complete -c tarfirst -s k -l key -x -d 'Samples with this key.'
complete -c tarfirst -s i -l index -x -d 'The sample with this number, from 0 on.'
complete -c tarfirst -l verbatim -d 'Compare names with their case, take values as they are.'
complete -c tarfirst -l progress -d 'Show progress even if nobody seems to watch.'
complete -c tarfirst -s q -l quiet -d 'Show neither progress nor warnings.'
complete -c tarfirst -s v -l verbose -d 'End with one line of account on stderr.'
complete -c tarfirst -l version -d 'Show the version and exit.'
complete -c tarfirst -s h -l help -d 'Show this help and exit.'
