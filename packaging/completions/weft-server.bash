# Completion of weft-server for bash. The options come from the program itself.

_weft_server() {
    local current=${COMP_WORDS[COMP_CWORD]} program=${COMP_WORDS[0]}
    COMPREPLY=()
    if [[ $current != -* ]]; then
        mapfile -t COMPREPLY < <(compgen -f -- "$current")
        return
    fi
    if [[ -z ${_weft_server_options-} ]]; then
        _weft_server_options=$({
            "$program" --help | sed -n 's/^ *\(-[a-z], \)\{0,1\}\(--[a-z][a-z-]*\).*/\2/p'
            "$program" --print-default-config | sed -n 's/^#\([a-z][a-z0-9-]*\) .*/--\1/p'
        } 2>/dev/null | uniq)
    fi
    mapfile -t COMPREPLY < <(compgen -W "$_weft_server_options" -- "$current")
}
complete -o filenames -F _weft_server weft-server
