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
complete -c tarsort -s T -l files-from -r -F -d 'Read more names of shards from FILE, one a line.'
complete -c tarsort -s 0 -l null -d 'Names in -T files end with NUL, not newline.'
complete -c tarsort -l lax -d 'Accept shards that have no end-of-archive block.'
complete -c tarsort -l skip-special -d 'Leave out links, devices and sparse members without a word.'
complete -c tarsort -s o -l output -r -F -d 'Write to URL, which appears when it is complete. Default: -.'
complete -c tarsort -l force -d 'Replace what exists. Environment: TARTOOLS_FORCE.'
complete -c tarsort -s z -l gzip -d 'Compress by gzip; the name must not say otherwise.'
complete -c tarsort -s s -l sortkey -x -a '(__tartools_fields)' -d 'What to sort by. Default: __key__.'
complete -c tarsort -s S -l sorttype -x -a 'text int float version shuffle' -d 'As what it is compared. Default: text.'
complete -c tarsort -s r -l reverse -d 'The greatest first; equal ones stay as they were.'
complete -c tarsort -s u -l unique -x -a 'first last' -d 'Keep only this one of equal samples.'
complete -c tarsort -l missing -x -a 'first last' -d 'Where samples go that lack what is sorted by.'
complete -c tarsort -l seed -x -d 'Which of the possible random orders. Default: 0.'
complete -c tarsort -l verbatim -d 'Compare names with their case, take values as they are.'
complete -c tarsort -s M -l memory -x -d 'What sorting holds; 64K or more. Default: 268435456.'
complete -c tarsort -l tmpdir -x -a '(__fish_complete_directories)' -d 'Temporary files go here, not $TMPDIR.'
complete -c tarsort -l progress -d 'Show progress even if nobody seems to watch.'
complete -c tarsort -s q -l quiet -d 'Show neither progress nor warnings.'
complete -c tarsort -s v -l verbose -d 'End with one line of account on stderr.'
complete -c tarsort -l version -d 'Show the version and exit.'
complete -c tarsort -s h -l help -d 'Show this help and exit.'
