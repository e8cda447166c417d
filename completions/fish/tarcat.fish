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
complete -c tarcat -s T -l files-from -r -F -d 'Read more names of shards from FILE, one a line.'
complete -c tarcat -s 0 -l null -d 'Names in -T files end with NUL, not newline.'
complete -c tarcat -l lax -d 'Accept shards that have no end-of-archive block.'
complete -c tarcat -l skip-special -d 'Leave out links, devices and sparse members without a word.'
complete -c tarcat -s o -l output -r -F -d 'Write to URL, which appears when it is complete. Default: -.'
complete -c tarcat -l force -d 'Replace what exists. Environment: TARTOOLS_FORCE.'
complete -c tarcat -s z -l gzip -d 'Compress by gzip; the name must not say otherwise.'
complete -c tarcat -s f -l fields -x -a '(__tartools_fields)' -d 'Only these fields: words \'a;b\' or \'new=a;b\'.'
complete -c tarcat -s x -l exclude -x -a '(__tartools_fields)' -d 'Not these fields.'
complete -c tarcat -l verbatim -d 'Compare names of fields with their case.'
complete -c tarcat -s c -l count -x -d 'Stop after N samples.'
complete -c tarcat -l skip -x -d 'Leave out the first N samples read.'
complete -c tarcat -l slice -x -d 'Only these of the samples read.'
complete -c tarcat -l interleave -x -d 'Take one sample of each of N open shards in turn. At least 1.'
complete -c tarcat -l shuffle -x -d 'Shuffle the shards, and samples in a buffer of N. At least 1.'
complete -c tarcat -l seed -x -d 'Which of the possible random orders. Default: 0.'
complete -c tarcat -l rekey -x -d 'New keys, made of {index:09d}, {key} and {shard}.'
complete -c tarcat -l progress -d 'Show progress even if nobody seems to watch.'
complete -c tarcat -s q -l quiet -d 'Show neither progress nor warnings.'
complete -c tarcat -s v -l verbose -d 'End with one line of account on stderr.'
complete -c tarcat -l version -d 'Show the version and exit.'
complete -c tarcat -s h -l help -d 'Show this help and exit.'
