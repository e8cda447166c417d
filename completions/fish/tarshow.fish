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
complete -c tarshow -s f -l fields -x -a '(__tartools_fields)' -d 'Fields to keep, in quotes: \'jpg cls\'. \'a;b\' takes the first that exists, \'new=old\' renames.'
complete -c tarshow -s x -l exclude -x -a '(__tartools_fields)' -d 'Fields to drop, in quotes: \'json txt\'.'
complete -c tarshow -l verbatim -d 'Match field names by exact case.'
complete -c tarshow -l html -r -F -d 'Write a page for a browser: one file, no network needed.'
complete -c tarshow -l force -d 'Replace outputs that already exist. Environment: TARTOOLS_FORCE.'
complete -c tarshow -l random -x -d 'Show N samples drawn at random from all. At least 1.'
complete -c tarshow -l seed -x -d 'Random seed. Default: 0.'
complete -c tarshow -l large -d 'Put pictures of up to 1,024 pixels on the page, not 384.'
complete -c tarshow -l serve -d 'Show all samples in a browser: search, sort, choose.'
complete -c tarshow -l port -x -d 'Port of --serve, on 127.0.0.1. Default: a free one.'
complete -c tarshow -l facts -d 'Columns of facts about pictures, sounds and videos.'
complete -c tarshow -l decode -d 'For --serve: decode all pictures, to find broken ones.'
complete -c tarshow -s c -l count -x -d 'Stop after N samples.'
complete -c tarshow -l graphics -x -a 'auto kitty iterm sixel blocks none' -d 'How to draw pictures; auto detects what the terminal supports. Default: auto.'
complete -c tarshow -s i -l interactive -d 'Show one sample at a time; page with the keyboard.'
complete -c tarshow -l tmpdir -x -a '(__fish_complete_directories)' -d 'Directory for temporary files. Default: $TMPDIR, else /tmp.'
complete -c tarshow -s T -l files-from -r -F -d 'Read more shard names from FILE, one per line.'
complete -c tarshow -s 0 -l null -d 'Names in -T files end with NUL, not newline.'
complete -c tarshow -l allow-pipe -d 'Trust a list or plan that names commands (pipe:) or fifos or, on a server, local files and other servers.'
complete -c tarshow -l lax -d 'Accept shards without an end-of-archive block.'
complete -c tarshow -l skip-special -d 'Skip links, devices and sparse members silently (exit status 0).'
complete -c tarshow -l progress -d 'Show progress even if stderr is not a terminal.'
complete -c tarshow -s q -l quiet -d 'Show neither progress nor warnings.'
complete -c tarshow -s v -l verbose -d 'Print one line of totals on stderr at the end.'
complete -c tarshow -l version -d 'Show the version and exit.'
complete -c tarshow -s h -d 'Show the usage, the options and two examples, and exit.'
complete -c tarshow -l help -d 'Show this help and exit.'
