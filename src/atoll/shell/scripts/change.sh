refuse() {
  printf %s "-$1"
}
present() {
  [ -e "$1" ] || [ -L "$1" ]
}
done_or_refuse() {
  if e=$("$@" 2>&1); then echo +; else refuse "$e"; fi
}
delete() {
  if ! present "$p"; then refuse ": No such file or directory"; return; fi
  if [ -d "$p" ] && ! [ -L "$p" ]; then
    if [ "$flag" != 1 ]; then refuse ": Is a directory"; return; fi
    done_or_refuse rm -rf "$p"
  else
    done_or_refuse rm -f "$p"
  fi
}
move() {
  if ! present "$s"; then refuse ": No such file or directory"; return; fi
  if present "$p"; then
    if [ "$flag" != 1 ]; then refuse ": File exists"; return; fi
    if [ -d "$p" ] && ! [ -L "$p" ]; then
      if ! [ -d "$s" ] || [ -L "$s" ]; then refuse ": Is a directory"; return; fi
      if [ -n "$(find "$p/" -mindepth 1 -maxdepth 1)" ]; then
        refuse ": Directory not empty"
        return
      fi
      rm -rf "$p"
    elif [ -d "$s" ] && ! [ -L "$s" ]; then
      refuse ": Not a directory"
      return
    else
      rm -f "$p"
    fi
  elif ! e=$(mkdir -p "${p%/*}/" 2>&1); then
    case $e in *"File exists") e=": Not a directory" ;; esac
    refuse "$e"
    return
  fi
  done_or_refuse mv -f "$s" "$p"
}
work() {
  flag=$4
  path "$3"
  s=$p
  path "$2"
  case $1 in
    delete) delete ;;
    mkdir) done_or_refuse mkdir -p "$p" ;;
    move) p2=$p p=$s s=$p2; move ;;
    stat) if e=$(stat -c "%f %s $(stamps)" "$p" 2>&1); then echo "+$e"; else refuse "$e"; fi ;;
  esac
}
