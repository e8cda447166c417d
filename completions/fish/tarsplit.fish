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
complete -c tarsplit -s o -l output -r -F -d 'Prefix or pattern of the shards\' names.'
complete -c tarsplit -l parts -x -d 'Split by hash of the key, such as train:0.9,val:0.1 or train:90,val:10.'
complete -c tarsplit -l stratify -x -a '(__tartools_fields)' -d 'Give each of --parts its share of each value of this field.'
complete -c tarsplit -l group -x -a '(__tartools_fields)' -d 'Keep all samples with one value of this field in one of --parts.'
complete -c tarsplit -l by -x -a '(__tartools_fields)' -d 'Make a part for each value of this field.'
complete -c tarsplit -s n -l samples -x -d 'Put at most N samples in a shard. At least 1.'
complete -c tarsplit -s s -l size -x -d 'Make shards of at most this size, such as 500M or 1e9. Default: 1e9, unless -n is given.'
complete -c tarsplit -l shards -x -d 'Make K shards with equal numbers of samples, to within one. At least 1.'
complete -c tarsplit -l max-shards -x -d 'Stop after N shards; the rest is not read.'
complete -c tarsplit -l start -x -d 'Number of the first shard. Default: 0.'
complete -c tarsplit -l post -x -d 'Run COMMAND after each complete shard; {} and $TAR_SHARD are its name.'
complete -c tarsplit -l remove -d 'Remove each shard after its --post has succeeded.'
complete -c tarsplit -l force -d 'Replace outputs that already exist. Environment: TARTOOLS_FORCE.'
complete -c tarsplit -s z -l gzip -d 'Compress with gzip; OUTPUT may not end in another compression\'s suffix.'
complete -c tarsplit -l sums -r -F -d 'Write the SHA-256 of each output to FILE, for sha256sum -c.'
complete -c tarsplit -l tmpdir -x -a '(__fish_complete_directories)' -d 'Directory for temporary files. Default: $TMPDIR, else /tmp.'
complete -c tarsplit -s T -l files-from -r -F -d 'Read more shard names from FILE, one per line.'
complete -c tarsplit -s 0 -l null -d 'Names in -T files end with NUL, not newline.'
complete -c tarsplit -l allow-pipe -d 'Trust a list or plan that names commands (pipe:) or fifos or, on a server, local files and other servers.'
complete -c tarsplit -l lax -d 'Accept shards without an end-of-archive block.'
complete -c tarsplit -l skip-special -d 'Skip links, devices and sparse members silently (exit status 0).'
complete -c tarsplit -l progress -d 'Show progress even if stderr is not a terminal.'
complete -c tarsplit -s q -l quiet -d 'Show neither progress nor warnings.'
complete -c tarsplit -s v -l verbose -d 'Print one line of totals on stderr at the end.'
complete -c tarsplit -l version -d 'Show the version and exit.'
complete -c tarsplit -s h -d 'Show the usage, the options and two examples, and exit.'
complete -c tarsplit -l help -d 'Show this help and exit.'
