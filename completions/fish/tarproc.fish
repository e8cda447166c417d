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
complete -c tarproc -s T -l files-from -r -F -d 'Read more names of shards from FILE, one a line.'
complete -c tarproc -s 0 -l null -d 'Names in -T files end with NUL, not newline.'
complete -c tarproc -l lax -d 'Accept shards that have no end-of-archive block.'
complete -c tarproc -l skip-special -d 'Leave out links, devices and sparse members without a word.'
complete -c tarproc -s o -l output -r -F -d 'Write to URL, which appears when it is complete. Default: -.'
complete -c tarproc -l force -d 'Replace what exists. Environment: TARTOOLS_FORCE.'
complete -c tarproc -s z -l gzip -d 'Compress by gzip; the name must not say otherwise.'
complete -c tarproc -s c -l command -x -d 'Run CMD on each sample.'
complete -c tarproc -s s -l script -r -F -d 'Run the script FILE on each sample.'
complete -c tarproc -l shell -x -d 'What runs it. Default: bash.'
complete -c tarproc -s p -l parallel -x -d 'Workers; 0 is one a core. Default: 1.'
complete -c tarproc -l unordered -d 'Write samples as they are done.'
complete -c tarproc -s e -l errors -x -a 'abort skip ignore' -d 'When a command fails: stop, or leave its sample. Default: abort.'
complete -c tarproc -l timeout -x -d 'A command that takes longer is killed: it failed. At least 0.001.'
complete -c tarproc -l count -x -d 'Stop after the first N samples of the input.'
complete -c tarproc -s S -l subdirs -d 'Each subdirectory is a sample of the output.'
complete -c tarproc -l base -x -d 'Call the files NAME.FIELD. Default: sample.'
complete -c tarproc -l add-log -x -a '(__tartools_fields)' -d 'Add what the command prints as FIELD.'
complete -c tarproc -l keepdir -d 'Keep the directories, and say where they are.'
complete -c tarproc -l tmpdir -x -a '(__fish_complete_directories)' -d 'Temporary files go here, not $TMPDIR.'
complete -c tarproc -l progress -d 'Show progress even if nobody seems to watch.'
complete -c tarproc -s q -l quiet -d 'Show neither progress nor warnings.'
complete -c tarproc -s v -l verbose -d 'End with one line of account on stderr.'
complete -c tarproc -l version -d 'Show the version and exit.'
complete -c tarproc -s h -l help -d 'Show this help and exit.'
