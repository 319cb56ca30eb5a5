if python3 -ISc "import sys; sys.exit(sys.version_info < (3, 8))" </dev/null >/dev/null 2>&1; then
  k=python
elif [ "$(printf YQ== | base64 -d 2>/dev/null)" = a ]; then
  k=sh
  for c in cat chmod cut find grep head mkdir mv rm stat tail tr wc; do
    command -v "$c" >/dev/null || k="$k $c"
  done
else
  k=none
fi
printf "\n%s %s.\n" "$1" "$k"
