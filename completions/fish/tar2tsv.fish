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
complete -c tar2tsv -s T -l files-from -r -F -d 'Read more names of shards from FILE, one a line.'
complete -c tar2tsv -s 0 -l null -d 'Names in -T files end with NUL, not newline.'
complete -c tar2tsv -l lax -d 'Accept shards that have no end-of-archive block.'
complete -c tar2tsv -l skip-special -d 'Leave out links, devices and sparse members without a word.'
complete -c tar2tsv -s f -l fields -x -a '(__tartools_fields)' -d 'The columns: words \'a;b\', \'NEW=a\' or \'FIELD:json.path\'.'
complete -c tar2tsv -l nokey -d 'No column for the key.'
complete -c tar2tsv -l noheader -d 'No line with the names of the columns.'
complete -c tar2tsv -l csv -d 'Write comma-separated values (RFC 4180).'
complete -c tar2tsv -l jsonl -d 'Write one JSON object a line.'
complete -c tar2tsv -l missing -x -d 'Write STR where a sample lacks a value.'
complete -c tar2tsv -l verbatim -d 'Compare names with their case, take values as they are.'
complete -c tar2tsv -s o -l output -r -F -d 'Write to URL, which appears when it is complete. Default: -.'
complete -c tar2tsv -l force -d 'Replace what exists. Environment: TARTOOLS_FORCE.'
complete -c tar2tsv -s c -l count -x -d 'Stop after N samples.'
complete -c tar2tsv -l progress -d 'Show progress even if nobody seems to watch.'
complete -c tar2tsv -s q -l quiet -d 'Show neither progress nor warnings.'
complete -c tar2tsv -s v -l verbose -d 'End with one line of account on stderr.'
complete -c tar2tsv -l version -d 'Show the version and exit.'
complete -c tar2tsv -s h -l help -d 'Show this help and exit.'
