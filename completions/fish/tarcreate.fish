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
complete -c tarcreate -l format -x -d 'tsv, csv or recipe; else the suffix tells.'
complete -c tarcreate -l key -x -d 'Keys of a table without __key__: \'{:09d}\'.'
complete -c tarcreate -s C -l directory -x -a '(__fish_complete_directories)' -d 'Relative paths begin in DIR, not here.'
complete -c tarcreate -l allow-pipe -d 'Run the commands that a table names.'
complete -c tarcreate -l folder -x -a '(__fish_complete_directories)' -d 'Make samples of the files below DIR.'
complete -c tarcreate -l class -x -a '(__tartools_fields)' -d 'Store the name of the directory as FIELD.'
complete -c tarcreate -l skip-special -d 'Leave out links and special files without a word.'
complete -c tarcreate -s o -l output -r -F -d 'Write to URL, which appears when it is complete. Default: -.'
complete -c tarcreate -l force -d 'Replace what exists. Environment: TARTOOLS_FORCE.'
complete -c tarcreate -s z -l gzip -d 'Compress by gzip; the name must not say otherwise.'
complete -c tarcreate -l progress -d 'Show progress even if nobody seems to watch.'
complete -c tarcreate -s q -l quiet -d 'Show neither progress nor warnings.'
complete -c tarcreate -s v -l verbose -d 'End with one line of account on stderr.'
complete -c tarcreate -l version -d 'Show the version and exit.'
complete -c tarcreate -s h -l help -d 'Show this help and exit.'
