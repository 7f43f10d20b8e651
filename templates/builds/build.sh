# Builds one worker's binary where it runs: on the controller, or in a container (compose.sh).
# stdout: cargo's JSON messages, or what a custom line prints; stderr: diagnostics.
# The names begin with FDL_ so that none of them is a variable of the user's that cargo should see.
{% include "prolog.sh" %}
FDL_DIRECTORY={{ directory }}
FDL_TARGET={{ target }}
FDL_STAMP={{ stamp }}
set -- {{ words }}

# Empties the target directory when it was filled against another libtorch. The old stamp goes first
# and the new one comes last: a clean-up cut short is done again next time.
fdl_fresh_target() {
  fdl_old=$(cat "$FDL_TARGET/.fdl-libtorch" 2>/dev/null)
  [ "$fdl_old" != "$FDL_STAMP" ] || return 0
  [ -z "$fdl_old" ] || echo "libtorch is not the one that was built against here: all is built anew" >&2
  rm -f "$FDL_TARGET/.fdl-libtorch" || return
  for fdl_item in "$FDL_TARGET"/* "$FDL_TARGET"/.[!.]*; do
    case ${fdl_item##*/} in build.log | .fdl-*) continue ;; esac
    rm -rf "$fdl_item" || return
  done
  printf '%s\n' "$FDL_STAMP" >"$FDL_TARGET/.fdl-libtorch"
}

fdl_fresh_target || exit
cd "$FDL_DIRECTORY" || exit
exec env "$@"
