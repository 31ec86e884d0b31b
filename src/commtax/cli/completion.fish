# Completion of commtax in fish: commtax completion fish | source
function __commtax_offers
    set -l words (commandline -opc) (commandline -ct)
    if test (count $words) -eq (count (commandline -opc))
        set -a words ""
    end
    for line in (env _COMMTAX_COMPLETE=fish commtax $words[2..-1] 2>/dev/null)
        if test "$line" = ":files"
            __fish_complete_path (commandline -ct)
        else
            echo $line
        end
    end
end
complete -c commtax -f -a "(__commtax_offers)"
