refuse() {
  printf %s "-$1"
}
make() {
  e=$( (set -C && : > "$1") 2>&1) || return 1
  e=$(input 2>&1 > "$1") && [ "$(($(wc -c < "$1")))" -eq "$size" ] && return 0
  rm -f "$1"
  return 1
}
work() {
  path "$1"
  fresh=$2 size=$3
  if [ "$fresh" = 1 ] && { [ -e "$p" ] || [ -L "$p" ]; }; then
    refuse ": File exists"
    return
  fi
  case $p in */ | */. | */..) refuse ": Is a directory"; return ;; esac
  if ! e=$(mkdir -p "${p%/*}/" 2>&1); then
    case $e in *"File exists") e=": Not a directory" ;; esac
    refuse "$e"
    return
  fi
  if [ "$fresh" = 1 ]; then
    if make "$p" && chmod go-w "$p"; then echo +; else refuse "$e"; fi
    return
  fi
  if [ -d "$p" ]; then
    if ! [ -L "$p" ]; then refuse ": Is a directory"; return; fi
    rm -f "$p"
  fi
  w=${p%/*}/.$T.draft m=go-w
  if [ -f "$p" ]; then m=$(stat -L -c %a "$p"); fi
  if make "$w" && e=$(chmod "$m" "$w" 2>&1) && e=$(mv -f "$w" "$p" 2>&1); then
    echo +
  else
    rm -f "$w"
    refuse "$e"
  fi
}
