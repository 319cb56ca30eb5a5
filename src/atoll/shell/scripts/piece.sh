printf "\n%s %s\n" "$M" "$2"
tail -c "+$(($1 + 1))" "$t.out" | head -c "$2" | base64
printf "%s.\n" "$M"
