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
complete -c tarsort -s s -l sort-key -x -a '(__tartools_fields)' -d 'Sort by this field, such as cls or meta.json:width. Default: __key__.'
complete -c tarsort -s S -l sort-type -x -a 'text int float version shuffle' -d 'How to compare values. Default: text.'
complete -c tarsort -s r -l reverse -d 'Sort in descending order.'
complete -c tarsort -s u -l unique -x -a 'first last' -d 'Keep only the first, or only the last, of several samples with equal values.'
complete -c tarsort -l missing -x -a 'first last' -d 'Put samples without the field first, or last; otherwise they are an error.'
complete -c tarsort -l seed -x -d 'Random seed. Default: 0.'
complete -c tarsort -l verbatim -d 'Match field names by exact case, and keep the final newline of values.'
complete -c tarsort -s M -l memory -x -d 'Memory for sorting, 64K or more, such as 64M or 1e9. Default: 256M.'
complete -c tarsort -l tmpdir -x -a '(__fish_complete_directories)' -d 'Directory for temporary files. Default: $TMPDIR, else /tmp.'
complete -c tarsort -s T -l files-from -r -F -d 'Read more shard names from FILE, one per line.'
complete -c tarsort -s 0 -l null -d 'Names in -T files end with NUL, not newline.'
complete -c tarsort -l allow-pipe -d 'Trust a list or plan that names commands (pipe:) or fifos or, on a server, local files and other servers.'
complete -c tarsort -l lax -d 'Accept shards without an end-of-archive block.'
complete -c tarsort -l skip-special -d 'Skip links, devices and sparse members silently (exit status 0).'
complete -c tarsort -s o -l output -r -F -d 'File or URL to write; it appears once it is complete. Default: stdout.'
complete -c tarsort -l force -d 'Replace outputs that already exist. Environment: TARTOOLS_FORCE.'
complete -c tarsort -s z -l gzip -d 'Compress with gzip; OUTPUT may not end in another compression\'s suffix.'
complete -c tarsort -l sums -r -F -d 'Write the SHA-256 of each output to FILE, for sha256sum -c.'
complete -c tarsort -l progress -d 'Show progress even if stderr is not a terminal.'
complete -c tarsort -s q -l quiet -d 'Show neither progress nor warnings.'
complete -c tarsort -s v -l verbose -d 'Print one line of totals on stderr at the end.'
complete -c tarsort -l version -d 'Show the version and exit.'
complete -c tarsort -s h -d 'Show the usage, the options and two examples, and exit.'
complete -c tarsort -l help -d 'Show this help and exit.'
