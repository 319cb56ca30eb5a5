umask 077
input >> "$t.in"
n=$(stat -c %s "$t.in" 2>/dev/null) || n=$(($(wc -c < "$t.in")))
printf "\n%s %s\n%s.\n" "$M" "$n" "$M"
