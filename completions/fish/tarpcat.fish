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
complete -c tarpcat -s T -l files-from -r -F -d 'Read more names of shards from FILE, one a line.'
complete -c tarpcat -s 0 -l null -d 'Names in -T files end with NUL, not newline.'
complete -c tarpcat -l lax -d 'Accept shards that have no end-of-archive block.'
complete -c tarpcat -l skip-special -d 'Leave out links, devices and sparse members without a word.'
complete -c tarpcat -s o -l output -r -F -d 'Write to URL, which appears when it is complete. Default: -.'
complete -c tarpcat -l force -d 'Replace what exists. Environment: TARTOOLS_FORCE.'
complete -c tarpcat -s z -l gzip -d 'Compress by gzip; the name must not say otherwise.'
complete -c tarpcat -s f -l fields -x -a '(__tartools_fields)' -d 'Only these fields: words \'a;b\' or \'new=a;b\'.'
complete -c tarpcat -s x -l exclude -x -a '(__tartools_fields)' -d 'Not these fields.'
complete -c tarpcat -l verbatim -d 'Compare names of fields with their case.'
complete -c tarpcat -s c -l count -x -d 'Stop after N samples.'
complete -c tarpcat -l skip -x -d 'Leave out the first N samples read.'
complete -c tarpcat -l slice -x -d 'Only these of the samples read.'
complete -c tarpcat -l interleave -x -d 'Take one sample of each of N open shards in turn. At least 1.'
complete -c tarpcat -l shuffle -x -d 'Shuffle the shards, and samples in a buffer of N. At least 1.'
complete -c tarpcat -l seed -x -d 'Which of the possible random orders. Default: 0.'
complete -c tarpcat -l rekey -x -d 'New keys, made of {index:09d}, {key} and {shard}.'
complete -c tarpcat -s p -l parallel -x -d 'Workers; 0 is one a core. Default: 4.'
complete -c tarpcat -s M -l memory -x -d 'Bytes that may wait in memory. Default: 268435456.'
complete -c tarpcat -l unordered -d 'Write samples as they come, in no certain order.'
complete -c tarpcat -l tmpdir -x -a '(__fish_complete_directories)' -d 'Temporary files go here, not $TMPDIR.'
complete -c tarpcat -l progress -d 'Show progress even if nobody seems to watch.'
complete -c tarpcat -s q -l quiet -d 'Show neither progress nor warnings.'
complete -c tarpcat -s v -l verbose -d 'End with one line of account on stderr.'
complete -c tarpcat -l version -d 'Show the version and exit.'
complete -c tarpcat -s h -l help -d 'Show this help and exit.'
