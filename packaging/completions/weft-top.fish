# Completion of weft-top for fish. The options and their descriptions come from the program itself.

function __weft_top_options
    set --local program (commandline --tokenize --cut-at-cursor)[1]
    $program --help 2>/dev/null |
        sed -n 's/^  \(-[^ ,]*\)\(, \(-[^ ]*\)\)\{0,1\} [A-Z]* *\(.*\)/\1\t\4\n\3\t\4/p' | grep '^-'
end

complete --command weft-top --condition 'string match --quiet -- "-*" (commandline --current-token)' \
    --no-files --arguments '(__weft_top_options)'
