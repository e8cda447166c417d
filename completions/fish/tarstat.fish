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
complete -c tarstat -l classes -x -a '(__tartools_fields)' -d 'Count the values of these too, in quotes: \'label json:split\'.'
complete -c tarstat -l hours -d 'Add up the hours of sounds and videos.'
complete -c tarstat -l decode -d 'Decode all pictures, to find broken ones.'
complete -c tarstat -l json -d 'Print one JSON object.'
complete -c tarstat -s p -l parallel -x -d 'Number of workers; 0 means one per core. Default: one per core, up to 8.'
complete -c tarstat -s T -l files-from -r -F -d 'Read more shard names from FILE, one per line.'
complete -c tarstat -s 0 -l null -d 'Names in -T files end with NUL, not newline.'
complete -c tarstat -l allow-pipe -d 'Trust a list or plan that names commands (pipe:) or fifos or, on a server, local files and other servers.'
complete -c tarstat -l lax -d 'Accept shards without an end-of-archive block.'
complete -c tarstat -l skip-special -d 'Skip links, devices and sparse members silently (exit status 0).'
complete -c tarstat -l progress -d 'Show progress even if stderr is not a terminal.'
complete -c tarstat -s q -l quiet -d 'Show neither progress nor warnings.'
complete -c tarstat -s v -l verbose -d 'Print one line of totals on stderr at the end.'
complete -c tarstat -l version -d 'Show the version and exit.'
complete -c tarstat -s h -d 'Show the usage, the options and two examples, and exit.'
complete -c tarstat -l help -d 'Show this help and exit.'
