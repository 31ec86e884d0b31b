#compdef commtax
# Completion of commtax in zsh: eval "$(commtax completion zsh)" below compinit, or this text as _commtax in a folder of $fpath.
_commtax() {
    local line files=0
    local -a offers
    while IFS= read -r line; do
        if [[ $line == :files ]]; then files=1; else offers+=("$line"); fi
    done < <(_COMMTAX_COMPLETE=zsh commtax "${(@Q)words[2,CURRENT]}" 2>/dev/null)
    (( ${#offers} )) && _describe -t commtax commtax offers
    (( files )) && _files
}
if [[ ${zsh_eval_context[-1]} == loadautofunc ]]; then _commtax "$@"; else compdef _commtax commtax; fi
