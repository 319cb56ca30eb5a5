// Limits of Pyodide's files, which live in memory: bytes of all of them, of one, and open ones.
// The walls behind it are the memory limits of the process: this makes errors of them in time.

const ENOSPC = 51, EFBIG = 22; // Emscripten's own numbers
const FOLDERS = ["/app", "/tmp", "/dev/shm", "/home/guest"];

export function limitFiles(FS, { disk, fileSize, openFiles }) {
  const { stream, node } = FS.filesystems.MEMFS.ops_table.file;
  const { write } = stream, { setattr } = node;
  let used = count(FS);

  function grow(one, size) {
    const more = size - one.usedBytes;
    if (more <= 0) return;
    if (fileSize !== null && size > fileSize) throw new FS.ErrnoError(EFBIG);
    if (disk === null) return;
    if (used + more > disk) used = count(FS); // files may have gone
    if (used + more > disk) throw new FS.ErrnoError(ENOSPC);
    used += more;
  }

  stream.write = (file, buffer, offset, length, position, canOwn) => {
    grow(file.node, position + length);
    return write(file, buffer, offset, length, position, canOwn);
  };
  node.setattr = (one, attributes) => {
    if (attributes.size !== undefined) grow(one, attributes.size);
    return setattr(one, attributes);
  };
  FS.MAX_OPEN_FDS = openFiles - 1; // the last number, not how many
}

function count(FS) {
  let total = 0;
  const visit = (one) => {
    if (FS.isFile(one.mode)) total += one.usedBytes ?? 0;
    else if (FS.isDir(one.mode)) Object.values(one.contents ?? {}).forEach(visit);
  };
  for (const folder of FOLDERS) visit(FS.lookupPath(folder).node);
  return total;
}
