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
complete -c tar2folder -s f -l fields -x -a '(__tartools_fields)' -d 'Fields to keep, in quotes: \'jpg cls\'. \'a;b\' takes the first that exists, \'new=old\' renames.'
complete -c tar2folder -s x -l exclude -x -a '(__tartools_fields)' -d 'Fields to drop, in quotes: \'json txt\'.'
complete -c tar2folder -l verbatim -d 'Match field names by exact case, and keep the final newline of values.'
complete -c tar2folder -s c -l count -x -d 'Stop after N samples.'
complete -c tar2folder -s o -l output -x -a '(__fish_complete_directories)' -d 'Folder to write; if new, it appears once it is complete.'
complete -c tar2folder -l force -d 'Replace outputs that already exist. Environment: TARTOOLS_FORCE.'
complete -c tar2folder -l class -x -a '(__tartools_fields)' -d 'Put samples into folders by the value of FIELD, such as cls.txt.'
complete -c tar2folder -l rows -x -d 'Write text and JSON to this table in DIR: metadata.csv or metadata.jsonl.'
complete -c tar2folder -s T -l files-from -r -F -d 'Read more shard names from FILE, one per line.'
complete -c tar2folder -s 0 -l null -d 'Names in -T files end with NUL, not newline.'
complete -c tar2folder -l allow-pipe -d 'Trust a list or plan that names commands (pipe:) or fifos or, on a server, local files and other servers.'
complete -c tar2folder -l lax -d 'Accept shards without an end-of-archive block.'
complete -c tar2folder -l skip-special -d 'Skip links, devices and sparse members silently (exit status 0).'
complete -c tar2folder -l progress -d 'Show progress even if stderr is not a terminal.'
complete -c tar2folder -s q -l quiet -d 'Show neither progress nor warnings.'
complete -c tar2folder -s v -l verbose -d 'Print one line of totals on stderr at the end.'
complete -c tar2folder -l version -d 'Show the version and exit.'
complete -c tar2folder -s h -d 'Show the usage, the options and two examples, and exit.'
complete -c tar2folder -l help -d 'Show this help and exit.'
