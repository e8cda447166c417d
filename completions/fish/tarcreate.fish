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
complete -c tarcreate -l format -x -a 'tsv csv jsonl recipe' -d 'Format of the plan. Default: tsv for stdin, else by suffix.'
complete -c tarcreate -l key-template -x -d 'Make keys from row numbers and columns. Default: {:09d}.'
complete -c tarcreate -s C -l directory -x -a '(__fish_complete_directories)' -d 'Directory of relative paths. Default: the current one.'
complete -c tarcreate -l allow-pipe -d 'Trust a list or plan that names commands (pipe:) or fifos or, on a server, local files and other servers.'
complete -c tarcreate -l folder -x -a '(__fish_complete_directories)' -d 'Make samples from the files below DIR, without a plan.'
complete -c tarcreate -l rows -r -F -d 'With --folder: a table about its files.'
complete -c tarcreate -l coco -r -F -d 'With --folder: a COCO file about it.'
complete -c tarcreate -l file-column -x -d 'The column of --rows with file names. Default: file_name and the like.'
complete -c tarcreate -l key-column -x -d 'The column with the keys. Default: __key__, if there is one.'
complete -c tarcreate -l zip -r -F -d 'Make samples from a zip file; repeatable.'
complete -c tarcreate -l parquet -r -F -d 'Make samples from a Parquet file; repeatable.'
complete -c tarcreate -l tfrecord -r -F -d 'Make samples from a TFRecord file; repeatable.'
complete -c tarcreate -s f -l fields -x -a '(__tartools_fields)' -d 'Columns that become fields, in quotes. \'jpg=image cls=label __key__=id\' renames them.'
complete -c tarcreate -l class -x -a '(__tartools_fields)' -d 'With --folder, --zip: store each class as FIELD.'
complete -c tarcreate -l exclude-files -x -d 'With --folder: leave out matching files; repeatable.'
complete -c tarcreate -l dots -x -a 'first last' -d 'Which dot of the name of a file ends the key. Default: first in a folder; in a column, the only one.'
complete -c tarcreate -l follow -d 'With --folder: follow symbolic links.'
complete -c tarcreate -l encoding -x -d 'Encoding of text, or of names in zip files: gbk, shift_jis, latin-1, utf-16 ... Default: UTF-8.'
complete -c tarcreate -l skip-special -d 'With --folder, --zip: skip links and special files silently. The exit status stays 0.'
complete -c tarcreate -s o -l output -r -F -d 'File or URL to write; it appears once it is complete. Default: stdout.'
complete -c tarcreate -l force -d 'Replace outputs that already exist. Environment: TARTOOLS_FORCE.'
complete -c tarcreate -s z -l gzip -d 'Compress with gzip; OUTPUT may not end in another compression\'s suffix.'
complete -c tarcreate -l sums -r -F -d 'Write the SHA-256 of each output to FILE, for sha256sum -c.'
complete -c tarcreate -l progress -d 'Show progress even if stderr is not a terminal.'
complete -c tarcreate -s q -l quiet -d 'Show neither progress nor warnings.'
complete -c tarcreate -s v -l verbose -d 'Print one line of totals on stderr at the end.'
complete -c tarcreate -l version -d 'Show the version and exit.'
complete -c tarcreate -s h -d 'Show the usage, the options and two examples, and exit.'
complete -c tarcreate -l help -d 'Show this help and exit.'
