work() {
  path "$1"
  text "$3"
  e=$(echo | grep -q "$2" -e "$v" 2>&1)
  if [ "$?" -gt 1 ]; then printf %s "-$e"; return; fi
  if ! [ -d "$p" ]; then
    echo "+0"
    if [ -f "$p" ] && [ -s "$p" ] && grep -q "$2" -e "$v" "$p" 2>/dev/null; then echo ./; fi
    echo
    return
  fi
  cd "$p" || { printf "+0\n\n"; return; }
  n="*
*"
  echo "+$(($(find . -mindepth "$4" -maxdepth "$4" -type d 2>/dev/null | head -n 1 | wc -l)))"
  find . -maxdepth "$4" -type f -size +0c -size "-$5c" ! -path "$n" \
    -exec grep -l "$2" -e "$v" {} + 2>/dev/null
  echo
  find . -maxdepth "$4" -type f -size +0c -size "-$5c" -path "$n" \
    -exec grep -q "$2" -e "$v" {} \; -exec printf "%s//\n" {} \; 2>/dev/null
}
