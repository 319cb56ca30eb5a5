work() {
  path "$1"
  if [ -L "$p" ]; then echo link; else echo plain; fi
  if ! s=$(stat -L -c "%s %f $(stamps)" "$p" 2>&1); then
    printf %s "-$s"
  elif ! [ -f "$p" ] || [ "${s%% *}" -gt "$2" ]; then
    echo "+$s 0"
  elif ! [ -r "$p" ]; then
    printf %s "-: Permission denied"
  elif [ -n "${3:-}" ]; then
    n=$(($(wc -l < "$p") + 1 - $(tail -c 1 "$p" | wc -l)))
    echo "+$s $n"
    tail -n "+$3" "$p" | head -n "$4"
  else
    echo "+$s 0"
    head -c "$2" "$p"
  fi
}
