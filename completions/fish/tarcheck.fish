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
complete -c tarcheck -l expect -x -a '(__tartools_fields)' -d 'Fields that each sample must have: \'jpg;png cls\'.'
complete -c tarcheck -l decode -d 'Decode pictures, JSON, arrays, sounds and text, to find broken ones.'
complete -c tarcheck -l ignore -x -d 'Kinds of findings that don\'t matter: \'suffix-lies upper-case\'.'
complete -c tarcheck -l check-sums -r -F -d 'Compare each SHARD with its checksum in FILE, as sha256sum or --sums writes it.'
complete -c tarcheck -l dots -x -a 'first last' -d 'Which dot of the name of a file ends the key. Default: first.'
complete -c tarcheck -l for -x -a 'hf webdataset' -d 'Check also for a reader: hf (datasets and its card) or webdataset.'
complete -c tarcheck -l json -d 'Print one JSON object.'
complete -c tarcheck -l fix -d 'Write the intact samples to OUTPUT.'
complete -c tarcheck -s o -l output -r -F -d 'File or URL for --fix; with %06d or {shard:06d}, one for each shard.'
complete -c tarcheck -l drop-duplicates -d 'With --fix, keep the first of samples with one key, and of equal fields.'
complete -c tarcheck -l force -d 'Replace outputs that already exist. Environment: TARTOOLS_FORCE.'
complete -c tarcheck -l sums -r -F -d 'Write the SHA-256 of each output to FILE, for sha256sum -c.'
complete -c tarcheck -s p -l parallel -x -d 'Number of workers; 0 means one per core. Default: one per core, up to 8.'
complete -c tarcheck -s M -l memory -x -d 'Memory for samples held back, such as 64M or 1e9. Default: 256M.'
complete -c tarcheck -l tmpdir -x -a '(__fish_complete_directories)' -d 'Directory for temporary files. Default: $TMPDIR, else /tmp.'
complete -c tarcheck -s T -l files-from -r -F -d 'Read more shard names from FILE, one per line.'
complete -c tarcheck -s 0 -l null -d 'Names in -T files end with NUL, not newline.'
complete -c tarcheck -l allow-pipe -d 'Trust a list or plan that names commands (pipe:) or fifos or, on a server, local files and other servers.'
complete -c tarcheck -l lax -d 'Accept shards without an end-of-archive block.'
complete -c tarcheck -l skip-special -d 'Skip links, devices and sparse members silently (exit status 0).'
complete -c tarcheck -l progress -d 'Show progress even if stderr is not a terminal.'
complete -c tarcheck -s q -l quiet -d 'Show neither progress nor warnings.'
complete -c tarcheck -s v -l verbose -d 'Print one line of totals on stderr at the end.'
complete -c tarcheck -l version -d 'Show the version and exit.'
complete -c tarcheck -s h -d 'Show the usage, the options and two examples, and exit.'
complete -c tarcheck -l help -d 'Show this help and exit.'
