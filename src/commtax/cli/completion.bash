# Completion of commtax in bash: eval "$(commtax completion bash)"
_commtax() {
    local line files=0
    COMPREPLY=()
    while IFS= read -r line; do
        if [[ $line == :files ]]; then files=1; else COMPREPLY+=("$line"); fi
    done < <(_COMMTAX_COMPLETE=bash commtax "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null)
    if ((files)); then compopt -o default 2>/dev/null; fi
    if [[ ${#COMPREPLY[@]} == 1 && $COMPREPLY == *= ]]; then compopt -o nospace 2>/dev/null; fi
}
complete -F _commtax commtax
