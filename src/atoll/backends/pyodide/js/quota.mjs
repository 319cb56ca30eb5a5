// Limits of Pyodide's files, which live in memory: bytes of all of them, of one, and open ones.
// The walls behind it are the memory limits of the process: this makes errors of them in time.

const ENOSPC = 51, EFBIG = 22; // Emscripten's own numbers

export function limitFiles(FS, { disk, fileSize, openFiles }) {
  const { stream, node } = FS.filesystems.MEMFS.ops_table.file;
  const { write } = stream, { setattr } = node;
  const given = count(FS); // Python's own files
  let used = 0;

  function grow(one, size) {
    const more = size - one.usedBytes;
    if (more <= 0) return;
    if (fileSize !== null && size > fileSize) throw new FS.ErrnoError(EFBIG);
    if (disk === null) return;
    if (used + more > disk) used = count(FS) - given; // files may have gone
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

// Bytes of all files, wherever they are; also of those that have no name any more but are open.
function count(FS) {
  const files = new Set();
  const visit = (one) => {
    if (FS.isFile(one.mode)) files.add(one);
    else if (FS.isDir(one.mode)) Object.values(one.contents ?? {}).forEach(visit);
  };
  visit(FS.root);
  for (const stream of FS.streams) if (stream) visit(stream.node);
  return [...files].reduce((total, { usedBytes }) => total + (usedBytes ?? 0), 0);
}
