# Completion of weft-server for fish. The options and their descriptions come from the program itself.

function __weft_server_options
    set --local program (commandline --tokenize --cut-at-cursor)[1]
    begin
        $program --help | sed -n 's/^ *\(-[a-z], \)\{0,1\}\(--[a-z][a-z-]*\) [. ]* *\(.*\)/\2\t\3/p'
        $program --print-default-config |
            sed -n '/^# /{s/^# //;h;d;};/^#[a-z]/{s/^#\([a-z][a-z0-9-]*\) .*/--\1\t/;G;s/\n//p;}'
    end 2>/dev/null | uniq
end

complete --command weft-server --condition 'string match --quiet -- "-*" (commandline --current-token)' \
    --no-files --arguments '(__weft_server_options)'
