umask 077
input >> "$t.in"
n=$(($(wc -c < "$t.in")))
printf "\n%s %s\n%s.\n" "$M" "$n" "$M"
