work() {
  path "$1"
  if [ -d "$p" ]; then cd "$p" || return; fi
  text "$3"
  pattern=$v how=$2 room=$4
  shift 4
  for one do
    path "$one"
    echo =
    a=$(($(head -c 8192 "$p" | wc -c))) b=$(($(head -c 8192 "$p" | tr -d "\000" | wc -c)))
    if [ "$a" -eq "$b" ]; then
      grep -n -m "$room" "$how" -e "$pattern" "$p" 2>/dev/null | cut -b -8020
    fi
  done
}
