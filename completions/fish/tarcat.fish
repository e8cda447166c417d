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
complete -c tarcat -s f -l fields -x -a '(__tartools_fields)' -d 'Fields to keep, in quotes: \'jpg cls\'. \'a;b\' takes the first that exists, \'new=old\' renames.'
complete -c tarcat -s x -l exclude -x -a '(__tartools_fields)' -d 'Fields to drop, in quotes: \'json txt\'.'
complete -c tarcat -l verbatim -d 'Match field names by exact case.'
complete -c tarcat -s c -l count -x -d 'Stop after N samples.'
complete -c tarcat -l skip -x -d 'Skip the first N samples read.'
complete -c tarcat -l slice -x -d 'Select samples by number, counted from 0, as in a Python slice.'
complete -c tarcat -l interleave -x -d 'Open N shards at once and take a sample from each in turn. At least 1.'
complete -c tarcat -l shuffle -x -d 'Shuffle the list of shards, and samples in a buffer of N. At least 1.'
complete -c tarcat -l seed -x -d 'Random seed. Default: 0.'
complete -c tarcat -l check-sums -r -F -d 'Compare each SHARD with its checksum in FILE, as sha256sum or --sums writes it.'
complete -c tarcat -l dots -x -a 'first last' -d 'Which dot of the name of a file ends the key. Default: first.'
complete -c tarcat -l rekey -x -d 'Give samples new keys, from {index:09d}, {key}, {shard} and fields that hold text, such as {cls}.'
complete -c tarcat -s p -l parallel -x -d 'Read N shards at once; 0 means one per core. Default: one after the other.'
complete -c tarcat -s M -l memory -x -d 'Memory for samples held back, such as 64M or 1e9. Default: 256M.'
complete -c tarcat -l unordered -d 'Write samples as they arrive, in any order.'
complete -c tarcat -l tmpdir -x -a '(__fish_complete_directories)' -d 'Directory for temporary files. Default: $TMPDIR, else /tmp.'
complete -c tarcat -s T -l files-from -r -F -d 'Read more shard names from FILE, one per line.'
complete -c tarcat -s 0 -l null -d 'Names in -T files end with NUL, not newline.'
complete -c tarcat -l allow-pipe -d 'Trust a list or plan that names commands (pipe:) or fifos or, on a server, local files and other servers.'
complete -c tarcat -l lax -d 'Accept shards without an end-of-archive block.'
complete -c tarcat -l skip-special -d 'Skip links, devices and sparse members silently (exit status 0).'
complete -c tarcat -s o -l output -r -F -d 'File or URL to write; it appears once it is complete. Default: stdout.'
complete -c tarcat -l force -d 'Replace outputs that already exist. Environment: TARTOOLS_FORCE.'
complete -c tarcat -s z -l gzip -d 'Compress with gzip; OUTPUT may not end in another compression\'s suffix.'
complete -c tarcat -l sums -r -F -d 'Write the SHA-256 of each output to FILE, for sha256sum -c.'
complete -c tarcat -l progress -d 'Show progress even if stderr is not a terminal.'
complete -c tarcat -s q -l quiet -d 'Show neither progress nor warnings.'
complete -c tarcat -s v -l verbose -d 'Print one line of totals on stderr at the end.'
complete -c tarcat -l version -d 'Show the version and exit.'
complete -c tarcat -s h -d 'Show the usage, the options and two examples, and exit.'
complete -c tarcat -l help -d 'Show this help and exit.'
