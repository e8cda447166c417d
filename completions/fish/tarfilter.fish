# Made by python -m tartools.commands._manual.
function __tartools_fields
    sh -c 'for file; do
        case $file in -* | *:*) continue ;; "~/"*) file=$HOME/${file#??} ;; esac
        test -f "$file" || continue
        if head -c 4 "$file" | grep -q PAR1; then
            env tartools completion table "$file" | sed -n -e "s/^\([A-Za-z0-9_.:-][A-Za-z0-9_.:-]*\)\$/\1/p"
        else
            tar -tf "$file" | head -n 200 |
                sed -n -e "s|.*/||" -e "s/^[^.][^.]*\.\([A-Za-z0-9_.-][A-Za-z0-9_.-]*\)\$/\1/p" | sort -u
        fi | grep . && break
    done 2>/dev/null' fields (commandline -opc)[2..]
end
complete -c tarfilter -s S -l select -x -d 'Samples for which EXPR is true, such as \'int(cls) == 3\'.'
complete -c tarfilter -l keys -r -F -d 'Samples whose keys are in FILE, one per line.'
complete -c tarfilter -l fields-present -x -a '(__tartools_fields)' -d 'Samples that have all of these fields: \'jpg;png cls\'.'
complete -c tarfilter -l sample -x -d 'A random fraction of the samples, such as 0.1.'
complete -c tarfilter -l seed -x -d 'Random seed. Default: 0.'
complete -c tarfilter -l share -x -d 'A fraction by key alone, the same in every run: 0:0.9.'
complete -c tarfilter -l group -x -a '(__tartools_fields)' -d 'For --share, --sample: keep samples with one value of FIELD together.'
complete -c tarfilter -l invert -d 'Select the samples that do not meet the conditions.'
complete -c tarfilter -l ignore-errors -d 'Treat EXPR as false where it fails; otherwise that is an error.'
complete -c tarfilter -l verbatim -d 'Match field names by exact case, and keep the final newline of values.'
complete -c tarfilter -l rest -r -F -d 'Write the other samples to this file or URL.'
complete -c tarfilter -l tmpdir -x -a '(__fish_complete_directories)' -d 'Directory for temporary files. Default: $TMPDIR, else /tmp.'
complete -c tarfilter -s T -l files-from -r -F -d 'Read more shard names from FILE, one per line.'
complete -c tarfilter -s 0 -l null -d 'Names in -T files end with NUL, not newline.'
complete -c tarfilter -l allow-pipe -d 'Trust a list or plan that names commands (pipe:) or fifos or, on a server, local files and other servers.'
complete -c tarfilter -l lax -d 'Accept shards without an end-of-archive block.'
complete -c tarfilter -l skip-special -d 'Skip links, devices and sparse members silently (exit status 0).'
complete -c tarfilter -s o -l output -r -F -d 'File or URL to write; it appears once it is complete. Default: stdout.'
complete -c tarfilter -l force -d 'Replace outputs that already exist. Environment: TARTOOLS_FORCE.'
complete -c tarfilter -s z -l gzip -d 'Compress with gzip; OUTPUT may not end in another compression\'s suffix.'
complete -c tarfilter -l sums -r -F -d 'Write the SHA-256 of each output to FILE, for sha256sum -c.'
complete -c tarfilter -l progress -d 'Show progress even if stderr is not a terminal.'
complete -c tarfilter -s q -l quiet -d 'Show neither progress nor warnings.'
complete -c tarfilter -s v -l verbose -d 'Print one line of totals on stderr at the end.'
complete -c tarfilter -l version -d 'Show the version and exit.'
complete -c tarfilter -s h -d 'Show the usage, the options and two examples, and exit.'
complete -c tarfilter -l help -d 'Show this help and exit.'
