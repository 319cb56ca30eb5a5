"""JSON-RPC peers: requests and answers, buffered writes, passed file descriptors."""
