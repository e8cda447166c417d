# Made by python -m tartools.commands._manual.
function __tartools_rest
    complete -C (string join ' ' -- (string escape -- (commandline -opc)[2..]) (commandline -ct))
end
complete -c tartools -f
complete -c tartools -n 'test (count (commandline -opc)) -eq 1' -l help -s h -d 'Show the commands and exit.'
complete -c tartools -n 'test (count (commandline -opc)) -eq 1' -l version -d 'Show the version and exit.'
complete -c tartools -n 'test (count (commandline -opc)) -gt 1' -a '(__tartools_rest)'
complete -c tartools -n '__fish_seen_subcommand_from completion' -x -a 'bash zsh fish'
complete -c tartools -n 'test (count (commandline -opc)) -eq 1' -x -a tar2tsv -d 'Write fields of samples as a table.'
complete -c tartools -n 'test (count (commandline -opc)) -eq 1' -x -a tarcat -d 'Concatenate shards.'
complete -c tartools -n 'test (count (commandline -opc)) -eq 1' -x -a tarcheck -d 'Find what is wrong with a data set.'
complete -c tartools -n 'test (count (commandline -opc)) -eq 1' -x -a tarcreate -d 'Make a tar from a plan, or from a folder.'
complete -c tartools -n 'test (count (commandline -opc)) -eq 1' -x -a tardiff -d 'Compare two data sets, sample by sample.'
complete -c tartools -n 'test (count (commandline -opc)) -eq 1' -x -a tarfilter -d 'Choose samples by their fields, their keys, or a share of them.'
complete -c tartools -n 'test (count (commandline -opc)) -eq 1' -x -a tarfirst -d 'Write the first file that matches.'
complete -c tartools -n 'test (count (commandline -opc)) -eq 1' -x -a tarindex -d 'Make a table of the samples in shards.'
complete -c tartools -n 'test (count (commandline -opc)) -eq 1' -x -a tarjob -d 'Run a command for each of many shards, on this machine or on a Ray cluster.'
complete -c tartools -n 'test (count (commandline -opc)) -eq 1' -x -a tarjoin -d 'Add fields to samples, by key, from other shards or from a table of rows.'
complete -c tartools -n 'test (count (commandline -opc)) -eq 1' -x -a tarls -d 'List shards.'
complete -c tartools -n 'test (count (commandline -opc)) -eq 1' -x -a tarmix -d 'Mix the samples of several sources in shares.'
complete -c tartools -n 'test (count (commandline -opc)) -eq 1' -x -a tarpcat -d 'Concatenate shards, several of them read at once.'
complete -c tartools -n 'test (count (commandline -opc)) -eq 1' -x -a tarproc -d 'Run a command on every sample: xargs for shards.'
complete -c tartools -n 'test (count (commandline -opc)) -eq 1' -x -a tarshow -d 'Show samples to a person.'
complete -c tartools -n 'test (count (commandline -opc)) -eq 1' -x -a tarsort -d 'Sort the samples of shards, however many.'
complete -c tartools -n 'test (count (commandline -opc)) -eq 1' -x -a tarsplit -d 'Cut a stream of samples into shards, never inside a sample.'
complete -c tartools -n 'test (count (commandline -opc)) -eq 1' -x -a tarstat -d 'Summarize what is in shards.'
complete -c tartools -n 'test (count (commandline -opc)) -eq 1' -x -a demo -d 'Make a small data set and run the commands on it, line by line.'
complete -c tartools -n 'test (count (commandline -opc)) -eq 1' -x -a completion -d 'Print what to add to a start file of bash, zsh or fish so that Tab completes.'
