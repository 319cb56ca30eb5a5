work() {
  input | python3 -IS -X utf8 -c "if 1:
    import base64, sys, zlib
    exec(zlib.decompress(base64.b64decode(sys.argv[1])))
  " "$1"
}
