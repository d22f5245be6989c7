#!/bin/sh
# Starts the server of the image, or any other program that the arguments name.
#
#   no argument                      the server with its defaults
#   -OPTION ... or FILE.conf ...     the server with these arguments
#   anything else                    that program
#
# VALKEY_EXTRA_FLAGS   further arguments of the server, separated by blanks
#
# Started as root, the server runs as the user `weft`, who becomes the owner of everything in the working directory.
set -eu

SOCKET_DIRECTORY=${WEFT_SOCKET_DIRECTORY:-/run/weft}

# Returns 0 if the configuration file $1 may set the parameter $2: by itself, or in a file that it includes.
may_set() {
    [ ! -r "$1" ] || grep -Eiq "^[[:blank:]]*[\"']?($2|include)[\"']?[[:blank:]]" "$1"
}

# Returns 0 if no rule of the image's defaults concerns the first argument of the server: it reads its configuration
# from standard input, or it prints something and ends.
is_without_defaults() {
    case "${1-}" in
        - | -h | --help | -v | --version | --check-* | --print-* | --test-*) return 0 ;;
        *) return 1 ;;
    esac
}

case "${1-}" in
    '' | -* | *.conf) set -- weft-server "$@" ;;
esac

case "${1##*/}" in
    weft-server | valkey-server | redis-server) ;;
    *) exec "$@" ;;
esac

if [ "$(id -u)" = 0 ]; then
    # Links themselves change their owner, not what they name. Files that cannot change it, such as those of a read-only
    # volume, may be readable all the same.
    if [ "$PWD" != / ]; then
        find . ! -user weft -exec chown --no-dereference weft:weft '{}' + \
            || echo "docker-entrypoint.sh: not everything in $PWD belongs to weft" >&2
    fi
    exec setpriv --reuid=weft --regid=weft --init-groups --inh-caps=-all -- "$0" "$@"
elif [ ! -w . ]; then
    echo "docker-entrypoint.sh: warning: directory $PWD is not writable for user $(id -u), so no data file can be written" >&2
fi

# Data files are readable for their owner only, unless a umask was chosen.
if [ "$(umask)" = 0022 ]; then
    umask 0077
fi

program=$1
shift
if is_without_defaults "$@"; then
    exec "$program" "$@"
fi

# The defaults of the image come behind the configuration file and before all other arguments, which win.
file=
case "${1-}" in
    '' | -*) ;;
    *)
        file=$1
        shift
        ;;
esac
# Other containers are other machines; the network of the containers decides who can connect.
if [ -z "$file" ] || ! may_set "$file" protected-mode; then
    set -- --protected-mode no "$@"
fi
# The socket answers the health check whatever port, addresses and certificates the server has.
if [ -w "$SOCKET_DIRECTORY" ] && { [ -z "$file" ] || ! may_set "$file" unixsocket; }; then
    set -- --unixsocket "$SOCKET_DIRECTORY/weft.sock" "$@"
fi
if [ -n "$file" ]; then
    set -- "$file" "$@"
fi

# The variable is a list of words, none of which names files by a pattern.
set -f
# shellcheck disable=SC2086
exec "$program" "$@" ${VALKEY_EXTRA_FLAGS-}
