"""A Jupyter gateway: six REST routes and the kernel websocket, below `/jupyter`."""
