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
complete -c tarindex -s o -l output -x -d 'File or URL to write; with --for, a directory.'
complete -c tarindex -l force -d 'Replace outputs that already exist. Environment: TARTOOLS_FORCE.'
complete -c tarindex -l for -x -a 'dali wids openclip webshart energon' -d 'An index for another tool: dali, wids, openclip, webshart, energon.'
complete -c tarindex -s f -l fields -x -a '(__tartools_fields)' -d 'Columns of values, in quotes: \'cls json:score\'.'
complete -c tarindex -l facts -d 'Columns of facts about pictures, sounds and videos.'
complete -c tarindex -l pictures -d 'Columns of size, format and mode of pictures alone.'
complete -c tarindex -l decode -d 'Decode pictures (and sounds), to find broken ones.'
complete -c tarindex -l hash -x -a '(__tartools_fields)' -d 'A column of digests, to find equal payloads.'
complete -c tarindex -l dhash -x -a '(__tartools_fields)' -d 'Columns of hashes and colours, to find similar pictures.'
complete -c tarindex -l update -x -d 'Copy the rows of the table OLD for unchanged shards.'
complete -c tarindex -s p -l parallel -x -d 'Number of workers; 0 means one per core. Default: one per core, up to 8.'
complete -c tarindex -l tmpdir -x -a '(__fish_complete_directories)' -d 'Directory for temporary files. Default: $TMPDIR, else /tmp.'
complete -c tarindex -s T -l files-from -r -F -d 'Read more shard names from FILE, one per line.'
complete -c tarindex -s 0 -l null -d 'Names in -T files end with NUL, not newline.'
complete -c tarindex -l allow-pipe -d 'Trust a list or plan that names commands (pipe:) or fifos or, on a server, local files and other servers.'
complete -c tarindex -l lax -d 'Accept shards without an end-of-archive block.'
complete -c tarindex -l skip-special -d 'Skip links, devices and sparse members silently (exit status 0).'
complete -c tarindex -l progress -d 'Show progress even if stderr is not a terminal.'
complete -c tarindex -s q -l quiet -d 'Show neither progress nor warnings.'
complete -c tarindex -s v -l verbose -d 'Print one line of totals on stderr at the end.'
complete -c tarindex -l version -d 'Show the version and exit.'
complete -c tarindex -s h -d 'Show the usage, the options and two examples, and exit.'
complete -c tarindex -l help -d 'Show this help and exit.'
