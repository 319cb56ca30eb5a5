"""Servers that tests start inside a guest."""

ECHO = """
import socket, threading
def answer(connection):
    with connection:
        whole = b''.join(iter(lambda: connection.recv(65536), b''))
        connection.sendall(whole[::-1])
def accept(listener):
    while True:
        threading.Thread(target=answer, args=listener.accept()[:1], daemon=True).start()
listener = socket.create_server(('127.0.0.1', 7000), backlog=600)
threading.Thread(target=accept, args=(listener,), daemon=True).start()
"""
"""Answers each connection on port 7000 with what it sent, turned round."""
