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
complete -c tarproc -s c -l command -x -d 'Run CMD for each sample.'
complete -c tarproc -s s -l script -r -F -d 'Run the script FILE for each sample.'
complete -c tarproc -l shell -x -d 'Shell that runs CMD. Default: bash.'
complete -c tarproc -s p -l parallel -x -d 'Number of workers; 0 means one per core. Default: 1.'
complete -c tarproc -l unordered -d 'Write samples as they finish, in any order.'
complete -c tarproc -s e -l errors -x -a 'abort skip ignore' -d 'If CMD fails: stop, leave the sample out, or write it unchanged. Default: abort.'
complete -c tarproc -l timeout -x -d 'Kill CMD if it takes longer, and count it as failed. At least 0.001.'
complete -c tarproc -l report -r -F -d 'List the failed samples, why, and the last line printed, as TSV.'
complete -c tarproc -l count -x -d 'Stop after the first N samples of the input.'
complete -c tarproc -s S -l subdirs -d 'Make a sample from each subdirectory that CMD leaves: one in, any number out.'
complete -c tarproc -l base -x -d 'Name the files NAME.FIELD. Default: sample.'
complete -c tarproc -l add-log -x -a '(__tartools_fields)' -d 'Store the output of CMD in the sample, as FIELD.'
complete -c tarproc -l keep-dir -d 'Keep the directories, and print their paths.'
complete -c tarproc -l tmpdir -x -a '(__fish_complete_directories)' -d 'Directory for temporary files. Default: $TMPDIR, else /tmp.'
complete -c tarproc -s T -l files-from -r -F -d 'Read more shard names from FILE, one per line.'
complete -c tarproc -s 0 -l null -d 'Names in -T files end with NUL, not newline.'
complete -c tarproc -l allow-pipe -d 'Trust a list or plan that names commands (pipe:) or fifos or, on a server, local files and other servers.'
complete -c tarproc -l lax -d 'Accept shards without an end-of-archive block.'
complete -c tarproc -l skip-special -d 'Skip links, devices and sparse members silently (exit status 0).'
complete -c tarproc -s o -l output -r -F -d 'File or URL to write; it appears once it is complete. Default: stdout.'
complete -c tarproc -l force -d 'Replace outputs that already exist. Environment: TARTOOLS_FORCE.'
complete -c tarproc -s z -l gzip -d 'Compress with gzip; OUTPUT may not end in another compression\'s suffix.'
complete -c tarproc -l sums -r -F -d 'Write the SHA-256 of each output to FILE, for sha256sum -c.'
complete -c tarproc -l progress -d 'Show progress even if stderr is not a terminal.'
complete -c tarproc -s q -l quiet -d 'Show neither progress nor warnings.'
complete -c tarproc -s v -l verbose -d 'Print one line of totals on stderr at the end.'
complete -c tarproc -l version -d 'Show the version and exit.'
complete -c tarproc -s h -d 'Show the usage, the options and two examples, and exit.'
complete -c tarproc -l help -d 'Show this help and exit.'
