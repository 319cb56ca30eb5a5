rm -f "$t.in" "$t.out"
if [ -n "${1:-}" ]; then
  path "$1"
  rm -f "${p%/*}/.$T.draft"
fi
