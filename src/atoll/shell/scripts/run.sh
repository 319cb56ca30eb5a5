(umask 077 && : > "$t.out") || exit 1
work "$@" > "$t.out"
rm -f "$t.in"
n=$(($(wc -c < "$t.out")))
printf "\n%s %s\n" "$M" "$n"
if [ "$n" -le "$L" ]; then
  base64 < "$t.out"
  rm -f "$t.out"
fi
printf "%s.\n" "$M"
