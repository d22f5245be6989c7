# Completion of weft-top for bash. The options come from the program itself.

_weft_top() {
    local current=${COMP_WORDS[COMP_CWORD]} program=${COMP_WORDS[0]}
    COMPREPLY=()
    if [[ $current != -* ]]; then
        mapfile -t COMPREPLY < <(compgen -f -- "$current")
        return
    fi
    if [[ -z ${_weft_top_options-} ]]; then
        _weft_top_options=$("$program" --help 2>/dev/null | sed -n 's/^  \(-[^ ,]*\)\(, \(-[^ ]*\)\)\{0,1\} .*/\1 \3/p')
    fi
    mapfile -t COMPREPLY < <(compgen -W "$_weft_top_options" -- "$current")
}
complete -o filenames -F _weft_top weft-top
