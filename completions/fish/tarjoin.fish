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
complete -c tarjoin -l with -x -d 'The data set with the fields to add; then all arguments are shards of A.'
complete -c tarjoin -l format -x -a 'tsv csv jsonl parquet tar' -d 'Format of B. Default: by suffix, else tar.'
complete -c tarjoin -l key-column -x -d 'The column of B with the keys. Default: __key__, or key.'
complete -c tarjoin -l dots -x -a 'first last' -d 'Which dot of the name of a file ends the key. Default: first in a folder; in a column, the only one.'
complete -c tarjoin -l encoding -x -d 'Encoding of text, or of names in zip files: gbk, shift_jis, latin-1, utf-16 ... Default: UTF-8.'
complete -c tarjoin -s f -l fields -x -a '(__tartools_fields)' -d 'Fields or columns of B to add, in quotes: \'txt=caption cls\'. \'a;b\' takes the first that exists.'
complete -c tarjoin -s x -l exclude -x -a '(__tartools_fields)' -d 'Fields or columns of B not to add: \'json url\'.'
complete -c tarjoin -l left -d 'Also pass on samples of A without a partner.'
complete -c tarjoin -l anti -d 'Pass on only samples of A without a partner.'
complete -c tarjoin -l prefer -x -a 'a b' -d 'Whose field to use if A and B have one of the same name.'
complete -c tarjoin -l verbatim -d 'Match field names by exact case.'
complete -c tarjoin -s M -l memory -x -d 'Memory for samples held back, such as 64M or 1e9. Default: 256M.'
complete -c tarjoin -l tmpdir -x -a '(__fish_complete_directories)' -d 'Directory for temporary files. Default: $TMPDIR, else /tmp.'
complete -c tarjoin -s T -l files-from -r -F -d 'Read more shard names from FILE, one per line.'
complete -c tarjoin -s 0 -l null -d 'Names in -T files end with NUL, not newline.'
complete -c tarjoin -l allow-pipe -d 'Trust a list or plan that names commands (pipe:) or fifos or, on a server, local files and other servers.'
complete -c tarjoin -l lax -d 'Accept shards without an end-of-archive block.'
complete -c tarjoin -l skip-special -d 'Skip links, devices and sparse members silently (exit status 0).'
complete -c tarjoin -s o -l output -r -F -d 'File or URL to write; it appears once it is complete. Default: stdout.'
complete -c tarjoin -l force -d 'Replace outputs that already exist. Environment: TARTOOLS_FORCE.'
complete -c tarjoin -s z -l gzip -d 'Compress with gzip; OUTPUT may not end in another compression\'s suffix.'
complete -c tarjoin -l sums -r -F -d 'Write the SHA-256 of each output to FILE, for sha256sum -c.'
complete -c tarjoin -l progress -d 'Show progress even if stderr is not a terminal.'
complete -c tarjoin -s q -l quiet -d 'Show neither progress nor warnings.'
complete -c tarjoin -s v -l verbose -d 'Print one line of totals on stderr at the end.'
complete -c tarjoin -l version -d 'Show the version and exit.'
complete -c tarjoin -s h -d 'Show the usage, the options and two examples, and exit.'
complete -c tarjoin -l help -d 'Show this help and exit.'
