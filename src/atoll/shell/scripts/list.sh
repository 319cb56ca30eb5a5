work() {
  path "$1"
  f="%f %s $(stamps) %n//"
  if [ -d "$p" ]; then
    echo folder
    cd "$p" && find . -maxdepth "$2" -exec stat -c "$f" {} + 2>/dev/null
  else
    echo file
    stat -L -c "$f" "$p" 2>/dev/null
  fi
}
