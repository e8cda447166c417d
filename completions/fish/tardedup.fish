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
complete -c tardedup -l equal -x -a '(__tartools_fields)' -d 'Samples with equal payloads of these fields: \'jpg txt\'.'
complete -c tardedup -l near -x -a '(__tartools_fields)' -d 'Samples whose pictures in this field look alike.'
complete -c tardedup -l distance -x -d 'How many bits of 64 may differ, up to 15. Default: 6.'
complete -c tardedup -l keep -x -a 'first largest' -d 'Which of several duplicates to keep. Default: first.'
complete -c tardedup -l against -r -F -d 'Also leave out samples that duplicate one in this shard or table.'
complete -c tardedup -l keep-uncompared -d 'Keep samples that can\'t be compared; otherwise they are an error.'
complete -c tardedup -l rest -r -F -d 'Write the samples left out to this file or URL.'
complete -c tardedup -l report -r -F -d 'List the samples left out, each with the one it duplicates, as TSV.'
complete -c tardedup -l html -r -F -d 'Write a page of pairs for a browser: one file.'
complete -c tardedup -s p -l parallel -x -d 'Number of workers; 0 means one per core. Default: one per core, up to 8.'
complete -c tardedup -s M -l memory -x -d 'Memory for samples held back, such as 64M or 1e9. Default: 256M.'
complete -c tardedup -l tmpdir -x -a '(__fish_complete_directories)' -d 'Directory for temporary files. Default: $TMPDIR, else /tmp.'
complete -c tardedup -s T -l files-from -r -F -d 'Read more shard names from FILE, one per line.'
complete -c tardedup -s 0 -l null -d 'Names in -T files end with NUL, not newline.'
complete -c tardedup -l allow-pipe -d 'Trust a list or plan that names commands (pipe:) or fifos or, on a server, local files and other servers.'
complete -c tardedup -l lax -d 'Accept shards without an end-of-archive block.'
complete -c tardedup -l skip-special -d 'Skip links, devices and sparse members silently (exit status 0).'
complete -c tardedup -s o -l output -r -F -d 'File or URL to write; it appears once it is complete. Default: stdout.'
complete -c tardedup -l force -d 'Replace outputs that already exist. Environment: TARTOOLS_FORCE.'
complete -c tardedup -s z -l gzip -d 'Compress with gzip; OUTPUT may not end in another compression\'s suffix.'
complete -c tardedup -l sums -r -F -d 'Write the SHA-256 of each output to FILE, for sha256sum -c.'
complete -c tardedup -l progress -d 'Show progress even if stderr is not a terminal.'
complete -c tardedup -s q -l quiet -d 'Show neither progress nor warnings.'
complete -c tardedup -s v -l verbose -d 'Print one line of totals on stderr at the end.'
complete -c tardedup -l version -d 'Show the version and exit.'
complete -c tardedup -s h -d 'Show the usage, the options and two examples, and exit.'
complete -c tardedup -l help -d 'Show this help and exit.'
