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
complete -c tarfirst -s f -l fields -x -a '(__tartools_fields)' -d 'Field to write: jpg, or \'jpg;png\' for the first that exists.'
complete -c tarfirst -s S -l select -x -d 'Only samples for which EXPR is true, such as \'int(cls) == 3\'.'
complete -c tarfirst -s k -l key -x -d 'Only the sample with this key.'
complete -c tarfirst -l index -x -d 'Only sample number N, counted from 0.'
complete -c tarfirst -l verbatim -d 'Match field names by exact case, and keep the final newline of values.'
complete -c tarfirst -s T -l files-from -r -F -d 'Read more shard names from FILE, one per line.'
complete -c tarfirst -s 0 -l null -d 'Names in -T files end with NUL, not newline.'
complete -c tarfirst -l allow-pipe -d 'Trust a list or plan that names commands (pipe:) or fifos or, on a server, local files and other servers.'
complete -c tarfirst -l lax -d 'Accept shards without an end-of-archive block.'
complete -c tarfirst -l skip-special -d 'Skip links, devices and sparse members silently (exit status 0).'
complete -c tarfirst -l progress -d 'Show progress even if stderr is not a terminal.'
complete -c tarfirst -s q -l quiet -d 'Show neither progress nor warnings.'
complete -c tarfirst -s v -l verbose -d 'Print one line of totals on stderr at the end.'
complete -c tarfirst -l version -d 'Show the version and exit.'
complete -c tarfirst -s h -d 'Show the usage, the options and two examples, and exit.'
complete -c tarfirst -l help -d 'Show this help and exit.'
